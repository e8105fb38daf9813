"""The result file survives its writer, and the sums are of what it holds."""

import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolltape.errors import ConfigError
from rolltape.rollouts import ResultFile, summarize


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "_ng_rollout_id": f"t-{number}", "task_id": "t", "rollout_index": number, "ending": "finished", "reward": 1.0,
        "harness": "h", "model": "m", "mask_sample": False, "exclude": False,
        "_ng_token_capture": {"n_calls": 2, "generated_tokens_captured": 10, "generated_tokens_delivered": 8},
        "response": {"output": []}, **changes,
    }  # fmt: skip


def test_a_row_that_was_written_is_there_for_the_next_run_without_its_response(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "deep" / "out.jsonl") as first:
        first.append(row(0, response={"output": [{"generation_token_ids": np.arange(3, dtype=np.int32)}]}))

    with ResultFile(tmp_path / "deep" / "out.jsonl") as second:
        assert [r["_ng_rollout_id"] for r in second.rows] == ["t-0"]
        assert "response" not in second.rows[0]
    assert '"generation_token_ids":[0,1,2]' in (tmp_path / "deep" / "out.jsonl").read_text()


@pytest.mark.parametrize(
    "torn", ['{"_ng_rollout_id":"t-1","rew', '{"_ng_rollout_id":"t-1"}', '{"_n', "\0\0\0\0\n", "\n"]
)
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: str) -> None:
    file = tmp_path / "out.jsonl"
    with ResultFile(file) as first:
        first.append(row(0))
    whole = file.read_text()
    file.write_text(whole + torn)

    with ResultFile(file) as second:
        assert len(second.rows) == 1
        second.append(row(1))

    assert file.read_text().startswith(whole)
    assert len(file.read_text().splitlines()) == 2


def test_damage_in_the_middle_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with ResultFile(file) as first:
        first.append(row(0))
    file.write_text("{oops\n" + file.read_text())
    before = file.read_bytes()

    with pytest.raises(ConfigError, match=r"out\.jsonl:1 is no result row"):
        ResultFile(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "text", ["precious notes\n", "precious notes", "a\nb\n", '{"other": 1}', "{'_ng_rollout_id': 1}\n"]
)
def test_a_file_that_no_run_wrote_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(text)
    with pytest.raises(ConfigError):
        ResultFile(file)
    assert file.read_text() == text


def test_a_row_that_the_disk_has_no_room_for_leaves_no_half_line(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out.jsonl") as file:
        file.append(row(0))
        whole = file.path.stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 20, hard))
        try:
            with pytest.raises(ConfigError, match="cannot write results"):
                file.append(row(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        assert file.path.stat().st_size == whole
        file.append(row(2))
    with ResultFile(tmp_path / "out.jsonl") as again:
        assert [r["rollout_index"] for r in again.rows] == [0, 2]


def test_two_runs_cannot_hold_one_file(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out.jsonl"), pytest.raises(ConfigError, match="another run"):
        ResultFile(tmp_path / "out.jsonl")
    ResultFile(tmp_path / "out.jsonl").close()


def test_a_folder_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write results"):
        ResultFile(tmp_path / "file" / "out.jsonl")


def test_the_summary_counts_rewards_by_task_and_leaves_out_the_unrewarded() -> None:
    summary = summarize(
        [
            row(0),
            row(1, reward=0.0),
            row(2, reward=None, ending="crashed", exclude=True),
            row(0, task_id="u", reward=0.5),
        ]
    )

    assert [(s.task_id, s.rollouts, s.rewarded, s.pass_rate, s.mean_reward) for s in summary.tasks] == [
        ("t", 3, 2, 0.5, 0.5),
        ("u", 1, 1, 0.0, 0.5),
    ]
    assert summary.endings == {"finished": 3, "crashed": 1}
    assert (summary.calls, summary.excluded, summary.delivered_fraction) == (8, 1, 0.8)
    assert summary.to_json()["rollouts"][0]["rollout_id"] == "t-0"
    assert summary.to_json()["generated_tokens_captured"] == 40


def test_the_summary_of_nothing_has_no_fraction() -> None:
    assert summarize([]).delivered_fraction is None
