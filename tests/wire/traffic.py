"""Chat requests that real harnesses sent, recorded on the wire; long texts are replaced by markers."""

from pathlib import Path
from typing import Any

import msgspec

TRAFFIC = Path(__file__).parent.parent / "data" / "traffic"
HARNESSES = ("mini-swe-agent", "opencode", "qwen-code")


def recorded(harness: str) -> list[dict[str, Any]]:
    """`{id, path, headers, body}` of each request, in the order sent."""
    lines = (TRAFFIC / f"{harness}.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line) for line in lines]
