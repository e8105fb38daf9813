"""Claude Code through the gateway on a real vLLM: what the random model says is nonsense, and captured exactly."""

import json
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from rolltape.cli.desk import ClientDesk
from rolltape.client import connect
from rolltape.config import read_config
from rolltape.gateway.serve import running
from rolltape.harness import builtin_profiles
from rolltape.rebuild import rebuild
from rolltape.record import TokenEntry
from rolltape.rollouts import Plan, Task, run_rollouts

from .vllm_server import CONTEXT

pytestmark = pytest.mark.real
PINS = {"temperature": 0.0, "max_tokens": 24}
"""Greedy, to be compared with a direct call. No seed: on a CPU, vLLM dies of one where a prompt takes two chunks."""


async def test_a_rollout_on_a_random_model_is_captured_exactly(tmp_path: Path, vllm: str) -> None:
    flags = {"engine_kind": "vllm", "engine_url": vllm, "dir": str(tmp_path / "data"), "port": 0, "auth": "keys"}
    config = read_config(None, **flags, sampling_overrides=PINS)
    async with running(config) as gateway, connect(gateway.url, gateway.control_token) as connection:
        plan = Plan(
            tasks=[Task("t", "Write hello into out.txt.", check="true")],
            profile=builtin_profiles()["claude-code"],
            model="policy",
            out=tmp_path / "out.jsonl",
            directory=tmp_path / "data",
            time_limit=240.0,
            budget={"calls": 2},
        )
        await run_rollouts(plan, ClientDesk(connection), gateway.store)
        held = await gateway.store.read("t-0")

    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert held is not None
    assert row["ending"] in ("finished", "budget")
    assert not row["mask_sample"], row["_ng_token_capture"]
    calls = [entry for entry in held.entries if entry.outcome == "completed"]
    assert calls
    owned = [span.model_call_id for one in rebuild(held, delivery="forest").rows for span in one.spans if span.owned]
    assert sorted(owned) == sorted(entry.model_call_id for entry in calls)
    for entry in calls:
        assert (entry.faults, entry.kind) == ((), "agent")
        assert 10_000 < len(entry.prompt_token_ids) < CONTEXT
        assert len(entry.generation_token_ids) == len(entry.generation_log_probs) > 0
    await same_as_asked_directly(vllm, calls[0])


async def same_as_asked_directly(server: str, entry: TokenEntry) -> None:
    """vLLM, given the recorded prompt ids, samples the recorded ids with the recorded log-probs."""
    asked = {"model": "policy", "prompt": entry.prompt_token_ids.tolist(), "logprobs": 0, "return_token_ids": True}
    async with aiohttp.ClientSession() as http, http.post(f"{server}/v1/completions", json=asked | PINS) as response:
        (choice,) = (await response.json())["choices"]
    assert choice["token_ids"] == entry.generation_token_ids.tolist()
    direct = np.array(choice["logprobs"]["token_logprobs"], np.float32)
    assert np.allclose(direct, entry.generation_log_probs, atol=1e-4)
