"""`mode: continue` on a real vLLM: it computes on the recorded ids, and its parsers still read the reply."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from rolltape.agreement import Distribution, TransformersLogProbs, compare_entries
from rolltape.config import read_config
from rolltape.gateway.serve import running
from rolltape.rebuild import rebuild
from rolltape.record import LogProbKind, TokenCaptureSnapshot

from .vllm_server import MODEL

pytestmark = pytest.mark.real

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SPACED = '<tool_call>\n\\{"name":  "get_weather",   "arguments":  \\{"city":   "(Paris|Rome)"\\}\\}\n</tool_call>'
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
LIBRARY = {"tokenizer": str(MODEL), "renderer": "qwen3"}


@contextlib.asynccontextmanager
async def rollout(vllm: str, directory: Path, **flags: Any) -> AsyncIterator[tuple[str, Any, aiohttp.ClientSession]]:
    given = {"engine_kind": "vllm", "engine_url": vllm, "dir": str(directory), "port": 0}
    config = read_config(None, **given, sampling_overrides={"temperature": 1.0}, **flags)
    async with running(config) as up, aiohttp.ClientSession() as http:
        yield f"{up.url}/rollout/R/v1/chat/completions", up.store, http


async def asked(http: aiohttp.ClientSession, url: str, **body: Any) -> dict[str, Any]:
    async with http.post(url, json={"model": "policy", "seed": 5, **NO_THINKING, **body}) as response:
        answer = await response.json()
        assert response.status == 200, answer
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message


async def weather(vllm: str, directory: Path, tool: dict[str, Any] = TOOL, **flags: Any) -> TokenCaptureSnapshot:
    """A call whose arguments were sampled with odd white space, and the turn after its result."""
    async with rollout(vllm, directory, **flags) as (url, store, http):
        history: list[dict[str, Any]] = [{"role": "user", "content": "Is it warm in Paris? 北京 🙂"}]
        forced = {"structured_outputs": {"regex": SPACED}, "max_tokens": 60}
        said = await asked(http, url, messages=history, tools=[tool], **forced)
        (call,) = said["tool_calls"]
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
        history += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"},
        ]
        await asked(http, url, messages=history, tools=[tool], max_tokens=24)
        snapshot: TokenCaptureSnapshot = await store.freeze("R")
        return snapshot


def in_order(snapshot: TokenCaptureSnapshot) -> list[Any]:
    return sorted(snapshot.entries, key=lambda entry: entry.step_index or 0)


async def test_observed_the_template_breaks_the_chain(vllm: str, tmp_path: Path) -> None:
    snapshot = await weather(vllm, tmp_path)
    first, second = in_order(snapshot)
    assert not np.array_equal(second.prompt_token_ids[: first.length], first.sequence)
    assert rebuild(snapshot).metrics["chains"] == 2


@pytest.mark.parametrize(("how", "by"), [({}, "template"), (LIBRARY, "renderers")])
async def test_continued_it_is_one_chain_of_what_was_sampled(
    vllm: str, tmp_path: Path, how: dict[str, str], by: str
) -> None:
    snapshot = await weather(vllm, tmp_path, mode="continue", continuing=how)
    first, second = in_order(snapshot)
    assert second.extra["continuation"] == f"continued: {first.model_call_id} by {by}"
    assert np.array_equal(second.prompt_token_ids[: first.length], first.sequence)
    assert rebuild(snapshot).metrics["chains"] == 1


async def test_the_model_computed_on_the_ids_that_are_recorded(vllm: str, tmp_path: Path) -> None:
    snapshot = await weather(vllm, tmp_path, mode="continue")
    second = in_order(snapshot)[1]
    found = compare_entries([second], TransformersLogProbs(MODEL))[Distribution(LogProbKind.RAW)]
    assert found.n_tokens == len(second.generation_token_ids)
    assert found.holds(pearson=0.9999, max_abs_diff=1e-3)


async def test_both_ways_of_writing_the_news_write_the_same(vllm: str, tmp_path: Path) -> None:
    one = await weather(vllm, tmp_path / "a", mode="continue")
    other = await weather(vllm, tmp_path / "b", mode="continue", continuing=LIBRARY)
    assert np.array_equal(in_order(one)[1].prompt_token_ids, in_order(other)[1].prompt_token_ids)


async def test_a_library_that_writes_otherwise_than_the_server_is_not_believed(vllm: str, tmp_path: Path) -> None:
    """vLLM puts `"description": null` into a tool that has none, which a template given the tool itself never sees."""
    bare = {"name": "get_weather", "parameters": TOOL["function"]["parameters"]}
    snapshot = await weather(
        vllm, tmp_path, {"type": "function", "function": bare}, mode="continue", continuing=LIBRARY
    )
    first, second = in_order(snapshot)
    assert second.extra["continuation"] == f"continued: {first.model_call_id} by template"
