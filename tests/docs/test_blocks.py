"""The code in the documentation runs: all blocks of a page in order, in one fresh directory."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs import pages

DEFAULT_PORT = "8787"
THIRD_PARTY = ("docs/guides/claude-code.md", "docs/guides/codex.md", "docs/guides/ray.md")


def script(page: Path, port: int) -> str:
    """One shell session of the page's blocks; a Python block is a program of its own in it."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for number, block in enumerate(pages.blocks(page)):
        if not block.runs:
            continue
        if block.language == "python":
            lines.append(
                f"cat > block_{number}.py <<'END_OF_BLOCK'\n{block.code}END_OF_BLOCK\npython block_{number}.py"
            )
        else:
            lines.append(block.code)
    return "\n".join(lines).replace(DEFAULT_PORT, str(port))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def with_code() -> list[Any]:
    found = [page for page in pages.PAGES if any(block.runs for block in pages.blocks(page))]
    real = {page: [pytest.mark.real] if pages.name(page) in THIRD_PARTY else [] for page in found}
    return [pytest.param(page, marks=marks, id=pages.name(page)) for page, marks in real.items()]


@pytest.mark.parametrize("page", with_code())
def test_the_blocks_of_a_page_run_in_order(page, tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    session = subprocess.Popen(
        ["bash", "-c", script(page, free_port())],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = session.communicate(timeout=60)
    finally:
        stop(session.pid)
    assert session.returncode == 0, output


def stop(group: int) -> None:
    """End what a page left running in the background."""
    try:
        os.killpg(group, signal.SIGTERM)
    except ProcessLookupError:
        return


def test_blocks_that_do_not_run_are_few_and_say_why():
    left_out = [
        block.code for page in pages.PAGES for block in pages.blocks(page) if block.code.startswith(pages.NOT_RUN)
    ]
    assert len(left_out) <= 4
    assert all(len(code.splitlines()[0]) > len(pages.NOT_RUN) + 5 for code in left_out)
