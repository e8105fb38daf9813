"""The command line in process, and a store with two rollouts in it."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from rolltape.cli import main
from rolltape.record import Delivery, TokenEntry
from rolltape.store import TokenCaptureStore


@dataclass
class Said:
    """What a command said, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return msgspec.json.decode(self.out)


@pytest.fixture
def rolltape(monkeypatch, capfdbinary) -> Callable[..., Said]:
    """Runs `rolltape ARGUMENTS...`."""

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["rolltape", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        said = capfdbinary.readouterr()
        return Said(status or 0, said.out.decode(), said.err.decode())

    return run


def call(rollout_id: str, call_id: str, prompt: list[int], sampled: list[int], at: float, **more) -> TokenEntry:
    given = {
        "log_prob_kind": "raw",
        "delivery": Delivery.DELIVERED,
        "finish_reason": "stop",
        "created_at": at + 1,
        "started_at": at,
        "response_id": f"chatcmpl-{call_id}",
        "request_text": msgspec.json.encode(
            {"model": "m", "messages": [{"role": "user", "content": f"ask {call_id}"}]}
        ),
        "output_items": (
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"say {call_id}"}]},
        ),
    }
    return TokenEntry(
        rollout_id=rollout_id,
        model_call_id=call_id,
        prompt_token_ids=prompt,
        generation_token_ids=sampled,
        generation_log_probs=[-0.5] * len(sampled),
        **(given | more),
    )


@pytest.fixture
def store_dir(tmp_path):
    """task-a-0: two calls, the second extends the first. task-b-0: its harness crashed. task-b-1: a lost call."""
    directory = tmp_path / "store"

    async def fill() -> None:
        async with TokenCaptureStore(directory) as store:
            await store.put(call("task-a-0", "c1", [1, 2, 3], [4, 5], 10.0))
            await store.put(call("task-a-0", "c2", [1, 2, 3, 4, 5, 6], [7], 20.0))
            await store.set_outcome("task-a-0", reward=1.0, ending="finished", labels={})
            await store.put(call("task-b-0", "c1", [1, 2], [9], 30.0))
            await store.set_outcome("task-b-0", reward=None, ending="crashed", labels={})
            await store.put(call("task-b-1", "c1", [1, 2], [9], 40.0))
            await store.mark_incomplete("task-b-1", "c2")

    asyncio.run(fill())
    return directory
