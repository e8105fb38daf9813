"""Whole runs, with real processes: rewards, endings, secrets, resuming."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rollouts import folder_desk
from rollouts.folder_desk import CALL, FolderDesk, make_plan, rows_of, script_profile
from rolltape.errors import ConfigError, StoreError
from rolltape.harness.process import MARK
from rolltape.rollouts import CommandLimits, Finished, Resumed, Started, Summary, Warned, run_rollouts
from rolltape.rollouts.run import NO_CALLS, Event, Plan

ONE = [{"id": "t", "prompt": "hello", "check": "true"}]


async def run(plan: Plan, desk: FolderDesk, events: list[Event] | None = None) -> Summary:
    return await run_rollouts(plan, desk, desk, (events if events is not None else []).append)


@pytest.fixture
def desk(tmp_path: Path) -> FolderDesk:
    return FolderDesk(tmp_path / "store")


async def test_a_group_is_run_checked_delivered_and_retired(tmp_path: Path, desk: FolderDesk) -> None:
    tasks = [
        {"id": "copy", "prompt": "hi", "files": {"in/a.txt": "A"}, "setup": "mkdir d", "check": "cat b && test -d d"},
        {"id": "score", "prompt": "hi", "check": "echo thinking; echo 0.25"},
        {"id": "fail", "prompt": "hi", "check": "exit 3"},
        {"id": "open", "prompt": "hi"},
    ]  # fmt: skip
    events: list[Event] = []
    plan = make_plan(tmp_path, tasks, f"{CALL}; {CALL}; cp in/a.txt b; exit 0", group_size=2)

    summary = await run(plan, desk, events)

    rows = {row["_ng_rollout_id"]: row for row in rows_of(plan)}
    rewards = {name: row["reward"] for name, row in rows.items()}
    assert rewards == {
        "copy-0": 1.0, "copy-1": 1.0, "score-0": 0.25, "score-1": 0.25,
        "fail-0": 0.0, "fail-1": 0.0, "open-0": None, "open-1": None,
    }  # fmt: skip
    assert {row["ending"] for row in rows.values()} == {"finished"}
    assert {row["exclude"] for row in rows.values()} == {False}
    assert rows["copy-0"]["_ng_token_capture"]["n_calls"] == 2
    assert rows["copy-0"]["response"]["output"]
    assert left_by(rows["copy-0"], "b") == "A"
    assert desk.retired() == set(rows)
    assert summary.calls == 16
    assert [type(event) for event in events].count(Finished) == 8
    assert [event for event in events if isinstance(event, Resumed)] == [Resumed(8, 0, ())]


async def test_the_row_is_durable_before_its_evidence_is_retired(tmp_path: Path, desk: FolderDesk) -> None:
    plan = make_plan(tmp_path, ONE, CALL)
    drop, seen = desk.drop, []

    async def watched(rollout_id: str, **state: Any) -> bool:
        seen.append([row["_ng_rollout_id"] for row in rows_of(plan)])
        return await drop(rollout_id, **state)

    desk.drop = watched  # type: ignore[method-assign]
    await run(plan, desk)

    assert seen == [["t-0"]]
    steps = [line for line in desk.log if "t-0" in line]
    assert steps.index("create t-0") < steps.index("outcome t-0") < steps.index("freeze t-0") < steps.index("drop t-0")


async def test_what_says_less_than_is_required_is_left_out_and_its_evidence_stays(
    tmp_path: Path, desk: FolderDesk
) -> None:
    plan = replace(make_plan(tmp_path, ONE, CALL), require="exact")

    summary = await run(plan, desk)

    (row,) = rows_of(plan)
    assert row["certificate"]["verdict"] == "usable"
    assert row["excluded_reason"].startswith("certificate: usable, where exact is required (")
    assert (summary.excluded, desk.retired()) == (1, set())
    assert "snapshot" not in row


async def test_evidence_that_outlived_its_row_is_retired_at_the_next_start(tmp_path: Path, desk: FolderDesk) -> None:
    drop = desk.drop

    async def dies(rollout_id: str, **state: Any) -> bool:
        raise StoreError("gone")

    desk.drop = dies  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        await run(make_plan(tmp_path, ONE, CALL), desk)
    assert desk.retired() == set()

    desk.drop = drop  # type: ignore[method-assign]
    plan = make_plan(tmp_path, ONE, CALL)
    await run(plan, desk)

    assert desk.retired() == {"t-0"}
    assert len(rows_of(plan)) == 1


async def test_neither_set_up_nor_check_sees_a_key_or_the_gateway(
    tmp_path: Path, desk: FolderDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLTAPE_CONTROL_TOKEN", "master")
    tasks = [{"id": "t", "prompt": "p", "setup": "env > setup.env", "check": "env > check.env; test ! -e $HOME/.evil"}]
    plan = make_plan(tmp_path, tasks, f"{CALL}; env > harness.env; touch $HOME/.evil")

    await run(plan, desk)

    row = rows_of(plan)[0]
    seen = {name: left_by(row, f"{name}.env") for name in ("setup", "harness", "check")}
    assert row["reward"] == 1.0
    assert "rt-t-0.kkkk" in seen["harness"]
    for name in ("setup", "check"):
        names = {line.partition("=")[0] for line in seen[name].splitlines()}
        assert names <= {"PATH", "HOME", "LANG", "TMPDIR", "PWD", "SHLVL", "_", "OLDPWD", MARK}
    assert "master" not in "".join(seen.values())


async def test_a_crash_is_not_a_low_reward(tmp_path: Path, desk: FolderDesk) -> None:
    plan = make_plan(tmp_path, ONE, f"{CALL}; echo boom >&2; exit 2")

    await run(plan, desk)

    row = rows_of(plan)[0]
    assert (row["ending"], row["reward"], row["exclude"]) == ("crashed", None, True)
    assert row["excluded_reason"] == "crashed: boom"
    assert desk.outcomes() == {"t-0": "crashed"}


async def test_a_failed_set_up_could_not_start(tmp_path: Path, desk: FolderDesk) -> None:
    plan = make_plan(tmp_path, [{"id": "t", "prompt": "p", "setup": "echo no disk >&2; false", "check": "true"}], CALL)

    await run(plan, desk)

    row = rows_of(plan)[0]
    assert (row["ending"], row["reward"], row["exclude"]) == ("could_not_start", None, True)
    assert "no disk" in row["excluded_reason"]


async def test_a_timeout_keeps_the_reward_of_what_was_done(tmp_path: Path, desk: FolderDesk) -> None:
    tasks = [{"id": "t", "prompt": "p", "check": "test -e done"}]
    plan = make_plan(tmp_path, tasks, f"{CALL}; touch done; sleep 60", time_limit=0.5)

    await run(plan, desk)

    row = rows_of(plan)[0]
    assert (row["ending"], row["reward"], row["exclude"]) == ("timed_out", 1.0, False)


async def test_a_budget_stop_keeps_the_reward(tmp_path: Path, desk: FolderDesk) -> None:
    script = f"{CALL}; touch $(dirname $OPENAI_BASE_URL)/refused; sleep 60"
    plan = make_plan(tmp_path, ONE, script, budget={"calls": 1})

    await run(plan, desk)

    row = rows_of(plan)[0]
    assert (row["ending"], row["reward"], row["exclude"]) == ("budget", 1.0, False)


async def test_a_check_that_hangs_is_no_pass(tmp_path: Path, desk: FolderDesk) -> None:
    tasks = [{"id": "t", "prompt": "p", "check": "echo 1; sleep 60"}]
    plan = make_plan(tmp_path, tasks, CALL, command_limits=CommandLimits(check=0.3))

    await run(plan, desk)

    row = rows_of(plan)[0]
    assert (row["reward"], row["check_timed_out"]) == (0.0, True)


async def test_a_harness_that_made_no_captured_call_is_excluded_aloud(tmp_path: Path, desk: FolderDesk) -> None:
    events: list[Event] = []
    plan = make_plan(tmp_path, ONE, "true")

    await run(plan, desk, events)

    row = rows_of(plan)[0]
    assert (row["exclude"], row["excluded_reason"]) == (True, NO_CALLS)
    assert Warned("t-0", NO_CALLS) in events


async def test_no_more_rollouts_than_allowed_run_at_once(tmp_path: Path, desk: FolderDesk) -> None:
    running, most = set(), 0

    def watch(event: Event) -> None:
        nonlocal most
        if isinstance(event, Started):
            running.add(event.rollout_id)
        elif isinstance(event, Finished):
            running.discard(event.row["_ng_rollout_id"])
        most = max(most, len(running))

    plan = make_plan(tmp_path, ONE, f"{CALL}; sleep 0.1", group_size=9, concurrency=3)
    await run_rollouts(plan, desk, desk, watch)

    assert most == 3


async def test_started_again_it_repeats_nothing_that_finished(tmp_path: Path, desk: FolderDesk) -> None:
    await run(make_plan(tmp_path, ONE, CALL, group_size=2), desk)
    before = (tmp_path / "out.jsonl").read_text()
    events: list[Event] = []

    plan = make_plan(tmp_path, [*ONE, {"id": "u", "prompt": "p"}], CALL, group_size=2)
    summary = await run(plan, desk, events)

    assert (tmp_path / "out.jsonl").read_text().startswith(before)
    assert {row["_ng_rollout_id"] for row in rows_of(plan)[:2]} == {"t-0", "t-1"}
    assert sorted(row["_ng_rollout_id"] for row in rows_of(plan)) == ["t-0", "t-1", "u-0", "u-1"]
    assert events[0] == Resumed(4, 2, ())
    assert len(summary.rows) == 4


async def test_a_rollout_whose_row_was_torn_is_run_again_as_a_new_attempt(tmp_path: Path, desk: FolderDesk) -> None:
    plan = make_plan(tmp_path, ONE, CALL, group_size=2)
    await run(plan, desk)
    lines = plan.out.read_text().splitlines(keepends=True)
    torn = json.loads(lines[1])["_ng_rollout_id"]
    plan.out.write_text(lines[0] + lines[1][:40])

    await run(plan, desk)

    assert [row["_ng_rollout_id"] for row in rows_of(plan)][1] == f"{torn}-a1"
    assert rows_of(plan)[1]["rollout_index"] == int(torn[-1])


async def test_an_id_that_another_run_used_is_passed_over_and_left_alone(tmp_path: Path, desk: FolderDesk) -> None:
    await run(make_plan(tmp_path, ONE, CALL), desk)

    other = make_plan(tmp_path, ONE, CALL, out=tmp_path / "other.jsonl", directory=tmp_path / "elsewhere")
    await run(other, desk)
    third = make_plan(tmp_path, ONE, CALL, out=tmp_path / "third.jsonl")
    await run(third, desk)

    assert rows_of(other)[0]["_ng_rollout_id"] == "t-0-a1"
    assert rows_of(third)[0]["_ng_rollout_id"] == "t-0-a2"
    assert set(desk.outcomes().values()) == {"finished"}


@pytest.mark.parametrize("changes", [{"model": "other"}, {"profile": script_profile(CALL, name="other")}])
async def test_results_of_another_harness_or_model_are_not_mixed_in(
    tmp_path: Path, desk: FolderDesk, changes: dict[str, Any]
) -> None:
    await run(make_plan(tmp_path, ONE, CALL), desk)

    with pytest.raises(ConfigError, match="give another --out"):
        await run(make_plan(tmp_path, ONE, CALL, **changes), desk)


async def test_a_missing_harness_is_told_before_anything_starts(tmp_path: Path, desk: FolderDesk) -> None:
    plan = make_plan(tmp_path, ONE, CALL, profile=script_profile(CALL, executable="no-such", install="get it"))

    with pytest.raises(ConfigError, match="get it"):
        await run(plan, desk)
    assert not plan.out.exists()


async def test_a_desk_that_fails_stops_the_run_and_leaves_it_resumable(tmp_path: Path, desk: FolderDesk) -> None:
    outcome = desk.outcome

    async def broken(rollout_id: str, **said: Any) -> None:
        raise StoreError("the gateway does not answer")

    desk.outcome = broken  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="does not answer"):
        await run(make_plan(tmp_path, ONE, CALL, group_size=3), desk)
    desk.outcome = outcome  # type: ignore[method-assign]

    summary = await run(make_plan(tmp_path, ONE, CALL, group_size=3), desk)

    assert {row["rollout_index"] for row in summary.rows} == {0, 1, 2}


async def test_workspaces_of_good_rollouts_can_be_removed(tmp_path: Path, desk: FolderDesk) -> None:
    await run(make_plan(tmp_path, ONE, CALL, keep_workspaces=False), desk)
    crashed = make_plan(tmp_path, [{"id": "u", "prompt": "p"}], f"{CALL}; exit 1", keep_workspaces=False)
    await run(crashed, desk)

    assert [path.name for path in (tmp_path / "data/workspaces").iterdir()] == ["u-0"]


async def test_cancelling_ends_the_harnesses_and_the_next_run_goes_on(tmp_path: Path, desk: FolderDesk) -> None:
    gate = tmp_path / "gate"
    script = f"{CALL}; test -e {gate} || sleep 60"
    plan = make_plan(tmp_path, ONE, script, group_size=3, concurrency=3)
    started: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Started):
            started.append(event.rollout_id)

    task = asyncio.create_task(run_rollouts(plan, desk, desk, watch))
    while len(started) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_of(tmp_path) == []

    gate.touch()
    await run(plan, desk)

    assert sorted(row["_ng_rollout_id"] for row in rows_of(plan)) == ["t-0-a1", "t-1-a1", "t-2-a1"]
    assert {name: ending for name, ending in desk.outcomes().items() if ending == "interrupted"} == dict.fromkeys(
        ["t-0", "t-1", "t-2"], "interrupted"
    )


def test_a_runner_killed_by_surprise_leaves_nothing_that_the_next_one_does_not_mend(tmp_path: Path) -> None:
    """The first two rollouts finish, the next two hang; the runner gets SIGKILL; its orphans live on until resumed."""
    quick = f'{CALL}; case "$OPENAI_BASE_URL" in */t-[01]/*) exit 0;; */t-[23]/*) setsid sleep 300 & sleep 300;; esac'
    command = [sys.executable, folder_desk.__file__, str(tmp_path), quick, "5"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert first.stdout is not None
    started = 0
    while started < 4:
        started += "Started" in first.stdout.readline()
    while len(processes_of(tmp_path)) < 4:
        pass
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()
    orphans = processes_of(tmp_path)
    rows = (tmp_path / "out.jsonl").read_text()

    subprocess.run(command, check=True, env=env, capture_output=True)

    assert orphans
    assert processes_of(tmp_path) == []
    assert (tmp_path / "out.jsonl").read_text().startswith(rows)
    ids = [json.loads(line)["_ng_rollout_id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(ids) == ["t-0", "t-1", "t-2-a1", "t-3-a1", "t-4"]
    outcomes = FolderDesk(tmp_path / "store").outcomes()
    assert outcomes["t-2"] == outcomes["t-3"] == "interrupted"
    assert (tmp_path / "store/t-2/frozen").exists()


def left_by(row: dict[str, Any], name: str) -> str:
    return Path(row["workspace"], name).read_text()


def processes_of(folder: Path) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get(MARK, "").startswith(f"{folder}/") and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except psutil.Error:
            continue
    return found


async def test_a_task_whose_id_begins_like_anothers_attempt_is_not_sealed_as_one(
    tmp_path: Path, desk: FolderDesk
) -> None:
    tasks = [{"id": "t", "prompt": "hi"}, {"id": "t-0-add", "prompt": "hi"}]
    await run(make_plan(tmp_path, tasks[1:], CALL), desk)
    events: list[Event] = []

    await run(make_plan(tmp_path, tasks, CALL), desk, events)

    assert [event.interrupted for event in events if isinstance(event, Resumed)] == [()]
    assert desk.outcomes()["t-0-add-0"] == "finished"
