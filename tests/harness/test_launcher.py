"""One harness, started and ended. The harnesses are small scripts: a profile is data, so these are real ones."""

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from rolltape.harness import Attempt, Ended, Ending, Profile, launch
from rolltape.harness.process import MARK, Command, end_marked, run_process
from rolltape.harness.profile import Config, ConfigFile, Context, Report


def shell(script: str, **changes: object) -> Profile:
    return Profile(
        name="test", version="1", protocol="openai_chat", executable="sh",
        command=("{executable}", "-c", script.replace("{", "{{").replace("}", "}}"), "sh", "{prompt}"),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def attempt(folder: Path, **changes: object) -> Attempt:
    values: dict[str, object] = {
        "rollout_id": "t-0",
        "prompt": "do it",
        "model": "m",
        "base_urls": {"openai": "http://127.0.0.1:1/rollout/t-0/v1"},
        "api_key": "rt-t-0.secret",
        "directory": folder / "t-0",
        "time_limit": 20.0,
        "grace": 1.0,
        **changes,
    }
    return Attempt(**values)  # type: ignore[arg-type]


def marked(folder: Path) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get(MARK) == str(folder / "t-0") and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except psutil.Error:
            pass
    return found


async def until(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)


async def test_a_harness_runs_in_its_own_workspace_with_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATOR_SECRET", "s3cret")
    profile = shell(
        "env; pwd; cat $HOME/settings.json; echo got $1; cat",
        env={"KEY": "{api_key}", "URL": "{base_url}"},
        files=(ConfigFile(path="{home}/settings.json", text='{{"model": "{model}"}}'),),
    )

    ended = await launch(profile, attempt(tmp_path))

    said = (tmp_path / "t-0/out/stdout").read_text()
    names = {line.partition("=")[0] for line in said.splitlines() if "=" in line}
    assert ended.ending is Ending.FINISHED
    assert ended.exit_code == 0
    assert names - {"PWD", "_", "SHLVL", "OLDPWD"} == {"PATH", "HOME", "LANG", "TMPDIR", MARK, "KEY", "URL"}
    assert "KEY=rt-t-0.secret" in said
    assert "URL=http://127.0.0.1:1/rollout/t-0/v1" in said
    assert f"\n{tmp_path}/t-0/workspace\n" in said
    assert '{"model": "m"}' in said
    assert "got do it" in said


async def test_a_prompt_reaches_the_harness_as_one_argument_whatever_it_holds(tmp_path: Path) -> None:
    prompt = "-x $(touch pwned) {api_key} 'a' \"b\"\nnew line"

    await launch(shell('printf %s "$1"'), attempt(tmp_path, prompt=prompt))

    assert (tmp_path / "t-0/out/stdout").read_text() == prompt
    assert not (tmp_path / "t-0/workspace/pwned").exists()


async def test_an_error_exit_and_a_signal_are_crashes_that_keep_their_code(tmp_path: Path) -> None:
    failed = await launch(shell("echo oh no >&2; exit 7"), attempt(tmp_path, directory=tmp_path / "a"))
    killed = await launch(shell("kill -9 $$"), attempt(tmp_path, directory=tmp_path / "b"))

    assert (failed.ending, failed.exit_code, failed.detail) == (Ending.CRASHED, 7, "oh no")
    assert (killed.ending, killed.exit_code) == (Ending.CRASHED, -9)


async def test_a_missing_executable_could_not_start_and_says_how_to_get_it(tmp_path: Path) -> None:
    profile = Profile(
        name="x", version="1", protocol="openai_chat", executable="no-such-harness",
        command=("{executable}",), install="pip install it",
    )  # fmt: skip

    ended = await launch(profile, attempt(tmp_path))

    assert (ended.ending, ended.exit_code) == (Ending.COULD_NOT_START, None)
    assert "pip install it" in ended.detail


async def test_a_file_that_would_leave_the_attempt_is_not_written(tmp_path: Path) -> None:
    ended = await launch(shell("true", files=(ConfigFile(path="../escaped", text=""),)), attempt(tmp_path))

    assert ended.ending is Ending.COULD_NOT_START
    assert not (tmp_path / "escaped").exists()


async def test_a_hanging_harness_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    began = time.monotonic()

    ended = await launch(
        shell("trap '' TERM; while true; do sleep 0.1; done"), attempt(tmp_path, time_limit=0.3, grace=0.3)
    )

    assert (ended.ending, ended.exit_code) == (Ending.TIMED_OUT, -9)
    assert time.monotonic() - began < 30
    assert marked(tmp_path) == []


async def test_a_harness_may_tidy_up_on_sigterm(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 0' TERM; while true; do sleep 0.05; done"

    ended = await launch(shell(script), attempt(tmp_path, time_limit=0.3))

    assert ended.ending is Ending.TIMED_OUT
    assert "saved" in (tmp_path / "t-0/out/stdout").read_text()


async def test_grandchildren_in_sessions_of_their_own_end_with_the_harness(tmp_path: Path) -> None:
    script = "setsid sleep 60 & setsid setsid sleep 61 & nohup sleep 62 & env -i sleep 63 & sleep 0.2"

    ended = await launch(shell(script), attempt(tmp_path))

    assert ended.ending is Ending.FINISHED
    assert marked(tmp_path) == []
    ours = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "63"]]
    assert ours == []


async def test_a_strangers_process_is_left_alone(tmp_path: Path) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "30", env={**os.environ, MARK: "another"})
    try:
        await launch(shell("sleep 60"), attempt(tmp_path, time_limit=0.2))
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_daemon_that_keeps_the_output_open_does_not_hold_up_the_end(tmp_path: Path) -> None:
    began = time.monotonic()

    ended = await launch(shell("(sleep 60 &) ; echo bye"), attempt(tmp_path))

    assert ended.ending is Ending.FINISHED
    assert time.monotonic() - began < 30


async def test_cancelling_ends_the_processes(tmp_path: Path) -> None:
    task = asyncio.create_task(launch(shell("touch up; setsid sleep 60 & sleep 60"), attempt(tmp_path)))
    await until(tmp_path / "t-0/workspace/up")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert marked(tmp_path) == []


async def test_a_flood_of_output_is_bounded_and_keeps_head_and_tail(tmp_path: Path) -> None:
    flood = "import sys; print('first'); [sys.stdout.write('x' * 65536) for _ in range(800)]; print('last')"
    command = Command(
        args=[sys.executable, "-c", flood], cwd=tmp_path, env={}, mark=f"{tmp_path}/flood",
        stdout=tmp_path / "out", stderr=tmp_path / "err", time_limit=20, keep_bytes=100_000,
    )  # fmt: skip

    done = await run_process(command)

    text = (tmp_path / "out").read_text()
    assert done.code == 0
    assert text.startswith("first\n")
    assert text.endswith("last\n")
    assert len(text) < 201_000
    assert f"[... {800 * 65536 + len('first  last ') - 1 - 200_000} bytes left out ...]" in text


async def test_the_harnesss_own_report_overrules_its_exit_code(tmp_path: Path) -> None:
    report = Report(
        file="{out}/report.json", status=("info.status",), version="version", endings={"finished": "Done|Too.*"}
    )
    script = """echo '{"info": {"status": "TooLong"}, "version": "1.2"}' > ../out/report.json; exit 1"""

    ended = await launch(shell(script, report=report), attempt(tmp_path))

    assert ended == Ended(Ending.FINISHED, ended.seconds, 1, "TooLong", "1.2")


@pytest.mark.parametrize("left", ["mkfifo ../out/report.json", "echo '{' > ../out/report.json", "true"])
async def test_a_report_that_is_none_leaves_the_exit_code_to_decide(tmp_path: Path, left: str) -> None:
    report = Report(file="{out}/report.json", status=("s",), endings={"finished": ".*"})

    ended = await launch(shell(f"{left}; exit 3", report=report), attempt(tmp_path))

    assert (ended.ending, ended.status) == (Ending.CRASHED, None)


async def test_a_report_of_json_lines_is_read_from_its_last_line(tmp_path: Path) -> None:
    report = Report(
        file="{out}/stdout", status=("error.message", "type"), endings={"finished": "done|out of room", "budget": "x"}
    )
    good = """echo '{"type": "started"}'; echo '{"type": "done"}'"""
    bad = """echo '{"type": "started"}'; echo '{"type": "failed", "error": {"message": "out of room"}}'; exit 1"""

    ended = [await launch(shell(script, report=report), attempt(tmp_path)) for script in (good, bad)]

    assert [(one.ending, one.status) for one in ended] == [(Ending.FINISHED, "done"), (Ending.FINISHED, "out of room")]


async def test_a_spent_budget_ends_the_harness_and_is_its_ending(tmp_path: Path) -> None:
    async def spent() -> bool:
        return (tmp_path / "t-0/workspace/up").exists()

    ended = await launch(shell("touch up; sleep 60"), attempt(tmp_path, budget_spent=spent))

    assert ended.ending is Ending.BUDGET
    assert ended.ending.has_reward


async def test_a_configuration_file_is_passed_only_when_there_is_one(tmp_path: Path) -> None:
    profile = Profile(
        name="x", version="1", protocol="openai_chat", executable="echo",
        command=("{executable}", "{config_args}", "end"), config=Config(args=("-c", "{config}")),
    )  # fmt: skip

    await launch(profile, attempt(tmp_path, directory=tmp_path / "a"))
    await launch(profile, attempt(tmp_path, directory=tmp_path / "b", config=Path("/x y.yaml")))

    assert (tmp_path / "a/out/stdout").read_text() == "end\n"
    assert (tmp_path / "b/out/stdout").read_text() == "-c /x y.yaml end\n"


async def test_the_context_length_is_told_only_when_it_is_known(tmp_path: Path) -> None:
    profile = Profile(
        name="x", version="1", protocol="openai_chat", executable="sh",
        command=("{executable}", "-c", "echo $WINDOW $*", "sh", "{context_args}", "end"),
        context=Context(args=("--window={context_length}",), env={"WINDOW": "{context_length}"}),
    )  # fmt: skip

    await launch(profile, attempt(tmp_path, directory=tmp_path / "a"))
    await launch(profile, attempt(tmp_path, directory=tmp_path / "b", context_length=4096))

    assert (tmp_path / "a/out/stdout").read_text() == "end\n"
    assert (tmp_path / "b/out/stdout").read_text() == "4096 --window=4096 end\n"


async def test_what_a_killed_runner_left_behind_is_found_by_its_mark(tmp_path: Path) -> None:
    left = await asyncio.create_subprocess_exec("sleep", "30", env={**os.environ, MARK: f"{tmp_path}/left"})

    assert await asyncio.to_thread(end_marked, f"{tmp_path}/left") == 1
    assert await left.wait() == -9
