"""NeMo Gym's own code over our classes, in an environment of its own (`.venv-nemo-gym`, made by `.ci/nemo-gym`)."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integrations.recorded import records

from rolltape.integrations.nemo_gym import convert

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-nemo-gym" / "bin" / "python"
TURNS = [[1, 2, 3], [1, 2, 3, 10, 11, 4, 5], [1, 2, 3, 10, 11, 4, 5, 12, 6]]

pytestmark = pytest.mark.real


@pytest.fixture
def gym(tmp_path: Path) -> Any:
    """Runs a command of `gym_side.py` and returns what it says."""

    def run(command: str) -> Any:
        done = subprocess.run(
            [PYTHON, Path(__file__).with_name("gym_side.py"), command, tmp_path],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def prompts(build: dict[str, Any]) -> list[list[int]]:
    return [turn["prompt_token_ids"] for turn in build["turns"]]


def test_gyms_own_conformance_check_passes(gym: Any) -> None:
    assert gym("conformance") == [
        "put_then_freeze_visibility",
        "idempotent_reput",
        "conflicting_reput",
        "mark_incomplete_durability",
        "freeze_idempotency",
        "post_freeze_write_safety",
        "conditional_retirement",
        "lineage_visibility",
        "fresh_client_lineage_visibility",
        "begin_call_custody",
    ]


def test_a_rollout_that_gym_captures_is_rebuilt_by_gym_and_retired(gym: Any) -> None:
    told = gym("rollout")
    assert told["found"] == ["root", "resolved", "resolved"]
    assert (told["mask"], told["delivered"], told["retired"]) == (False, 1.0, True)
    assert prompts(told) == TURNS
    assert told["turns"][0]["generation_log_probs"] == records("whole")[0]["generation_log_probs"]
    assert told["refused"] == ["rollout 'rollout' was retired"] * 2


def test_delta_records_are_whole_in_the_store_and_whole_in_gyms_build(gym: Any) -> None:
    told = gym("deltas")
    assert told["found"] == ["root", "resolved", "resolved"]
    assert told["stored_prompts"] == prompts(told) == TURNS
    assert told["mask"] is False


def test_turns_that_other_processes_captured_are_found_as_parents(gym: Any) -> None:
    assert gym("first_turn") == ["root"]
    assert gym("other_turns") == ["resolved", "resolved"]
    told = gym("rebuild")
    assert (told["mask"], prompts(told)) == (False, TURNS)


def test_another_text_for_the_same_call_is_a_value_error(gym: Any) -> None:
    assert "another payload" in gym("conflict")


def test_imported_capture_files_read_as_gym_reads_them(gym: Any) -> None:
    told = gym("imported")
    assert told["same"] == {"deltas": True, "lost": True, "whole": True}
    assert told["again"] is True
    assert {name: build["mask"] for name, build in told["built"].items()} == {
        "deltas": False,
        "lost": True,
        "whole": False,
    }
    assert prompts(told["built"]["whole"]) == prompts(told["built"]["deltas"]) == TURNS


def test_calls_of_our_gateway_are_rebuilt_by_gym_and_a_cancelled_one_masks_nothing(gym: Any) -> None:
    told = gym("gateway")
    assert (told["mask"], told["incomplete"], told["delivered"], told["retired"]) == (False, False, 1.0, True)
    assert prompts(told) == TURNS


def test_digests_equal_gyms(gym: Any) -> None:
    assert gym("digests") == [convert.gym_digest(np.arange(n, dtype=np.int32)) for n in (0, 1, 1000)]
