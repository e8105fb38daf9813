"""A minute of kills, pauses and full disks under real clients: acknowledged = found, to the call."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.real
def test_a_minute_of_faults_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    command = [sys.executable, str(SOAK), "--minutes", "1", "--dir", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["n_missing"], result["unasked"], result["problems"]) == (0, [], [])
    assert result["acknowledged"] > 100
    assert set(result["faults"]) >= {"kill", "pause", "full"}
