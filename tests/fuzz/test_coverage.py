"""A bounded run of the coverage-guided fuzzer on every target."""

import subprocess
import sys
from pathlib import Path

import pytest

from . import targets

TESTS = Path(__file__).parents[1]
RUNS = 3000


@pytest.mark.real
@pytest.mark.parametrize("target", [*targets.PROTOCOLS, *targets.READERS])
def test_nothing_escapes(target, tmp_path):
    command = [sys.executable, "-m", "fuzz.fuzz_wire", target, f"-runs={RUNS}", "-seed=1", "-max_len=512"]
    done = subprocess.run(
        [*command, f"-artifact_prefix={tmp_path}/"], cwd=TESTS, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {RUNS} runs" in done.stderr, done.stderr[-3000:]
