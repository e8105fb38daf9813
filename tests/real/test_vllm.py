"""The gateway before a real vLLM, driven by the official SDKs: what is recorded is what vLLM computed.

Each call is made once through the gateway and once straight to vLLM with the same seed; nothing else runs meanwhile.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import numpy as np
import openai
import pytest

from rolltape.agreement import Distribution, TransformersLogProbs, compare_entries
from rolltape.config import read_config
from rolltape.gateway.serve import running
from rolltape.record import LogProbKind, TokenEntry
from rolltape.store import CaptureStore

from .vllm_server import CONTEXT, MODEL

pytestmark = pytest.mark.real

CITY = {"type": "string", "enum": ["Paris", "Rome"]}
PARAMETERS = {"type": "object", "properties": {"city": CITY}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather of a city", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
STRICT = {"type": "function", "function": {**FUNCTION, "strict": True}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n\\{"name": "get_weather", "arguments": \\{"city": "(Paris|Rome)"\\}\\}\n</tool_call>'
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
ASKED = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Is it warm in Paris? 北京 🙂"}]
THINK_END = 151668
END = 151645


@dataclass
class Lab:
    """A gateway before the server, and one rollout on it."""

    gateway: str
    server: str
    store: CaptureStore
    http: aiohttp.ClientSession

    @property
    def rollout(self) -> str:
        return f"{self.gateway}/rollout/R"

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Straight to vLLM."""
        async with self.http.post(self.server + path, json={"model": "policy", **body}) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    async def last(self) -> TokenEntry:
        """The newest entry, without fault."""
        held = await self.store.read("R", texts=True)
        assert held is not None
        entry = max(held.entries, key=lambda entry: entry.step_index or 0)
        assert (entry.outcome, entry.faults) == ("completed", ())
        assert len(entry.generation_token_ids) == len(entry.generation_log_probs) > 0
        return entry

    async def check(self, **chat: Any) -> TokenEntry:
        """The newest entry is what vLLM itself renders and samples for `chat`."""
        entry = await self.last()
        told = {name: chat[name] for name in ("tools", "chat_template_kwargs") if name in chat}
        told["messages"] = [_for_tokenize(message) for message in chat["messages"]]
        assert entry.prompt_token_ids.tolist() == (await self.post("/tokenize", told))["tokens"]
        answer = await self.post("/v1/chat/completions", {"logprobs": True, "return_token_ids": True, **chat})
        (choice,) = answer["choices"]
        assert entry.prompt_token_ids.tolist() == answer["prompt_token_ids"]
        assert entry.generation_token_ids.tolist() == choice["token_ids"]
        direct = np.array([item["logprob"] for item in choice["logprobs"]["content"]], np.float32)
        assert np.array_equal(entry.generation_log_probs, direct)
        return entry


def _for_tokenize(message: dict[str, Any]) -> dict[str, Any]:
    """`/tokenize` does not know the older name of reasoning, which the chat endpoint takes."""
    return {"reasoning" if name == "reasoning_content" else name: value for name, value in message.items()}


Labs = Callable[..., Awaitable[Lab]]


@pytest.fixture
async def lab(vllm: str, tmp_path: Path) -> AsyncIterator[Labs]:
    """`await lab(**sampling_overrides)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**overrides: Any) -> Lab:
            flags = {"engine_kind": "vllm", "engine_url": vllm, "dir": str(tmp_path), "port": 0}
            config = read_config(None, **flags, sampling_overrides=overrides, model_aliases=("*",))
            up = await stack.enter_async_context(running(config))
            return Lab(up.url, vllm, up.store, await stack.enter_async_context(aiohttp.ClientSession()))

        yield start


async def chat(lab: Lab, *, stream: bool, extra_body: dict[str, Any] | None = None, **asked: Any) -> dict[str, Any]:
    """By OpenAI's own SDK: the message, streamed or not, as one."""
    async with openai.AsyncOpenAI(base_url=f"{lab.rollout}/v1", api_key="none", max_retries=0) as sdk:
        asked = {"model": "policy", "extra_body": extra_body, **asked}
        if not stream:
            return (await sdk.chat.completions.create(**asked)).choices[0].message.model_dump()
        said: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
        async for chunk in await sdk.chat.completions.create(stream=True, **asked):
            for choice in chunk.choices:
                _collect(said, choice.delta.model_dump())
        return said | {"tool_calls": list(said["tool_calls"].values())}


def _collect(said: dict[str, Any], delta: dict[str, Any]) -> None:
    said["content"] += delta.get("content") or ""
    said["reasoning_content"] += delta.get("reasoning_content") or ""
    for piece in delta.get("tool_calls") or ():
        call = said["tool_calls"].setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})
        call["function"]["name"] += piece["function"]["name"] or ""
        call["function"]["arguments"] += piece["function"]["arguments"] or ""


HISTORY = [
    *ASKED,
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I should look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "21 degrees"},
]

CASES: dict[str, dict[str, Any]] = {
    "reasoning": {"messages": ASKED},
    "text": {"messages": ASKED, **NO_THINKING},
    "tools offered": {"messages": HISTORY, "tools": [TOOL], "tool_choice": "auto"},
    "a stop string": {"messages": ASKED, "stop": ["e"], **NO_THINKING},
}
FORCED: dict[str, dict[str, Any]] = {
    "a named tool": {"messages": ASKED, "tools": [STRICT], "tool_choice": NAMED, **NO_THINKING},
    "a required call": {"messages": ASKED, "tools": [STRICT], "tool_choice": "required", **NO_THINKING},
    "a call by grammar": {"messages": ASKED, "tools": [TOOL], "structured_outputs": {"regex": CALL}, **NO_THINKING},
}
VENDOR = ("chat_template_kwargs", "structured_outputs", "logit_bias")


def sdk_form(case: dict[str, Any]) -> dict[str, Any]:
    """Fields that the SDK does not know go through its `extra_body`."""
    extra = {name: value for name, value in case.items() if name in VENDOR}
    return {**{name: value for name, value in case.items() if name not in VENDOR}, "extra_body": extra}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_a_chat_is_recorded_as_vllm_computed_it(lab: Labs, case: str, stream: bool) -> None:
    up = await lab(seed=7, temperature=1.0)

    said = await chat(up, stream=stream, max_tokens=24, **sdk_form(CASES[case]))

    entry = await up.check(**CASES[case], max_tokens=24, seed=7, temperature=1.0)
    assert entry.log_prob_kind == "raw"
    assert entry.sampling_applied["max_tokens"] == 24
    assert said["reasoning_content"] if case in ("reasoning", "tools offered") else said["content"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", FORCED)
async def test_a_forced_tool_call_is_exact_and_says_that_a_grammar_held_it(lab: Labs, case: str, stream: bool) -> None:
    up = await lab(seed=7, temperature=1.0)

    said = await chat(up, stream=stream, max_tokens=60, **sdk_form(FORCED[case]))

    entry = await up.check(**FORCED[case], max_tokens=60, seed=7, temperature=1.0)
    assert entry.log_prob_kind == "grammar_masked"
    assert not entry.trainable.any()
    (call,) = said["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    if case == "a call by grammar":  # the others allow white space without end, which this model likes
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
        assert entry.finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_ends_where_the_model_ends_it(lab: Labs, stream: bool) -> None:
    up = await lab()
    case = {"messages": ASKED, "logit_bias": {str(THINK_END): 10}, "max_tokens": 40, "seed": 2, "temperature": 1.0}

    said = await chat(up, stream=stream, **sdk_form(case))

    entry = await up.check(**case)
    assert THINK_END in entry.generation_token_ids
    assert entry.log_prob_kind == "raw"
    assert said["content"] or said["reasoning_content"]


TERSE = {"role": "system", "content": "You are terse."}
WARM = "Is it warm in Paris? 北京 🙂"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [False, True])
async def test_anthropic_messages_reach_vllm_as_the_chat_that_they_are(lab: Labs, tools: bool, stream: bool) -> None:
    up = await lab(seed=7, temperature=1.0)
    offered = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": PARAMETERS}
    asked: dict[str, Any] = {
        "model": "policy",
        "system": "You are terse.",
        "messages": [{"role": "user", "content": WARM}],
        **({"tools": [offered]} if tools else {}),
    }
    async with anthropic.AsyncAnthropic(base_url=up.rollout, api_key="none", max_retries=0) as sdk:
        counted = await sdk.messages.count_tokens(**asked)
        if stream:
            async with sdk.messages.stream(max_tokens=24, **asked) as reply:
                message = await reply.get_final_message()
        else:
            message = await sdk.messages.create(max_tokens=24, **asked)

    equal = {"messages": [TERSE, {"role": "user", "content": WARM}], **({"tools": [TOOL]} if tools else {})}
    entry = await up.check(**equal, max_tokens=24, seed=7, temperature=1.0)
    assert counted.input_tokens == message.usage.input_tokens == len(entry.prompt_token_ids)
    assert message.usage.output_tokens == len(entry.generation_token_ids) == 24
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_reach_vllm_as_the_chat_that_they_are(lab: Labs, stream: bool) -> None:
    up = await lab(seed=7, temperature=1.0)
    asked: dict[str, Any] = {"model": "policy", "instructions": "You are terse.", "input": WARM}
    asked |= {"tools": [{"type": "function", **FUNCTION, "strict": False}], "max_output_tokens": 24}
    async with openai.AsyncOpenAI(base_url=f"{up.rollout}/v1", api_key="none", max_retries=0) as sdk:
        if stream:
            events = [event async for event in await sdk.responses.create(stream=True, **asked)]
            assert events[-1].type == "response.incomplete"
            response = events[-1].response
        else:
            response = await sdk.responses.create(**asked)

    entry = await up.last()
    assert response.usage is not None
    assert response.usage.input_tokens == len(entry.prompt_token_ids)
    assert response.usage.output_tokens == len(entry.generation_token_ids) == 24
    tool = {"type": "function", "function": {**FUNCTION, "strict": False}}
    await up.check(
        messages=[TERSE, {"role": "user", "content": WARM}], tools=[tool], max_tokens=24, seed=7, temperature=1.0
    )


@pytest.mark.parametrize("prompt", ["Once upon a time", [12522, 5193, 264, 882]])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_raw_prompt_is_completed_as_vllm_would(lab: Labs, prompt: Any, stream: bool) -> None:
    up = await lab(seed=7, temperature=1.0)
    async with openai.AsyncOpenAI(base_url=f"{up.rollout}/v1", api_key="none", max_retries=0) as sdk:
        asked: dict[str, Any] = {"model": "policy", "prompt": prompt, "max_tokens": 16}
        if stream:
            parts = [part async for part in await sdk.completions.create(stream=True, **asked)]
            text = "".join(choice.text for part in parts for choice in part.choices)
        else:
            text = (await sdk.completions.create(**asked)).choices[0].text

    body = {"prompt": prompt, "max_tokens": 16, "seed": 7, "temperature": 1.0, "logprobs": 0, "return_token_ids": True}
    (choice,) = (await up.post("/v1/completions", body))["choices"]
    entry = await up.last()
    assert text == choice["text"]
    assert entry.prompt_token_ids.tolist() == choice["prompt_token_ids"]
    assert entry.generation_token_ids.tolist() == choice["token_ids"]
    assert np.array_equal(entry.generation_log_probs, np.array(choice["logprobs"]["token_logprobs"], np.float32))


async def test_recomputed_log_probs_agree_and_those_of_a_grammar_are_told_apart(lab: Labs) -> None:
    raw: list[TokenEntry] = []
    up = await lab()
    for seed, case in enumerate([*CASES.values(), *CASES.values()]):
        sampling = {"seed": seed, "temperature": (0.7, 1.0)[seed % 2], "max_tokens": 64, "top_p": (1.0, 0.9)[seed % 2]}
        await chat(up, stream=bool(seed % 2), **sdk_form({**case, **sampling}))
        raw.append(await up.last())
    biased = {"messages": ASKED, "logit_bias": {str(THINK_END): 10}, "max_tokens": 64, "seed": 2}
    await chat(up, stream=True, **sdk_form(biased))
    raw.append(await up.last())
    await chat(up, stream=True, max_tokens=60, seed=1, **sdk_form(FORCED["a named tool"]))
    masked = await up.last()

    found = compare_entries([*raw, masked], TransformersLogProbs(MODEL))

    told_apart = found.pop(Distribution(LogProbKind.GRAMMAR_MASKED))
    assert told_apart.n_tokens == len(masked.generation_token_ids)
    assert not told_apart.comparable
    ((of, agreement),) = found.items()
    print(agreement)
    assert of == Distribution(LogProbKind.RAW)
    assert agreement.n_tokens > 200
    assert agreement.n_unknown == 0
    assert agreement.holds(pearson=0.9999, max_abs_diff=1e-3)
    passed_off = compare_entries([masked.with_(log_prob_kind=LogProbKind.RAW)], TransformersLogProbs(MODEL))
    assert not passed_off[of].holds(pearson=0.9999, max_abs_diff=1), "a grammar's log-probs passed for raw ones"


async def test_more_than_the_context_is_clamped_and_recorded_as_applied(lab: Labs) -> None:
    """As Claude Code asks; the model is made to end at once."""
    up = await lab()

    await chat(up, stream=True, max_tokens=40_000, **sdk_form({"messages": ASKED, "logit_bias": {str(END): 100}}))

    entry = await up.last()
    assert entry.generation_token_ids.tolist() == [END]
    assert entry.finish_reason == "stop"
    assert entry.sampling_applied["max_tokens"] == CONTEXT - len(entry.prompt_token_ids)


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 5])
async def test_a_prompt_that_leaves_no_room_is_refused_with_its_numbers(lab: Labs, length: int) -> None:
    up = await lab()
    async with openai.AsyncOpenAI(base_url=f"{up.rollout}/v1", api_key="none", max_retries=0) as sdk:
        with pytest.raises(openai.BadRequestError, match=f"{CONTEXT} tokens") as caught:
            await sdk.completions.create(model="policy", prompt=[1000] * length, max_tokens=5)

    assert caught.value.code == "context_length_exceeded"


async def test_a_caller_that_leaves_ends_the_generation(lab: Labs) -> None:
    up = await lab()
    async with openai.AsyncOpenAI(base_url=f"{up.rollout}/v1", api_key="none", max_retries=0) as sdk:
        stream = await sdk.chat.completions.create(
            model="policy", messages=ASKED, max_tokens=20_000, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(aiter(stream))
        assert await running_requests(up) == 1
        await stream.close()

        for _ in range(100):
            held = await up.store.read("R")
            if held and held.entries and not await running_requests(up):
                break
            await asyncio.sleep(0.1)

    assert held is not None
    (entry,) = held.entries
    assert entry.outcome == "cancelled"
    assert 0 < len(entry.generation_token_ids) < 20_000


async def running_requests(lab: Lab) -> int:
    async with lab.http.get(f"{lab.server}/metrics") as response:
        lines = (await response.text()).splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running")))
