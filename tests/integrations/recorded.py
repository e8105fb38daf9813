"""Capture files that NeMo Gym 0.7.0 wrote (`gym_side.py write_captures`), and the records in them."""

import json
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parent / "gym_captures"


def records(rollout_id: str) -> list[dict[str, Any]]:
    """Gym's records of a rollout, in the order they were written."""
    text = (CAPTURES / f"{rollout_id}.tokens.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
