"""One option for every test: `--no-skips` turns a skipped test into a failed run, so that nothing goes silently."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails the run")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if session.config.getoption("--no-skips") and skipped:
        names = "\n".join(f"  {report.nodeid}: {report.longrepr}" for report in skipped)
        reporter.write_line(f"error: {len(skipped)} skipped\n{names}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
