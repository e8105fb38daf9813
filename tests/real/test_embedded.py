"""The official OpenAI SDK on the embedded engine, through a real gateway: a real small model, streamed and whole."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from google import genai
from google.genai import types

from rolltape.config import read_config
from rolltape.gateway.serve import RunningGateway, running
from rolltape.record import TokenEntry

pytestmark = pytest.mark.real
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    config = read_config(None, dir=str(tmp_path), port=0, engine_kind="llamacpp", engine_options={"context": 2048})
    async with running(config) as up:
        yield up


def sdk(gateway: RunningGateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/rollout/R1/v1", api_key="none", max_retries=0)


async def entries(gateway: RunningGateway) -> list[TokenEntry]:
    held = await gateway.store.read("R1")
    assert held is not None
    return sorted(held.entries, key=lambda entry: entry.step_index or 0)


async def test_a_whole_and_a_streamed_reply_sample_the_same_tokens(gateway: RunningGateway) -> None:
    ask = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Name three colours."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    async with sdk(gateway) as client:
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    first, second = await entries(gateway)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert first.sequence.tolist() == second.sequence.tolist()
    for entry in (first, second):
        assert (entry.outcome, entry.faults, entry.log_prob_kind) == ("completed", (), "raw")
        assert entry.trainable.all()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_call_reaches_the_sdk_and_its_echo_extends_the_chain(
    gateway: RunningGateway, stream: bool
) -> None:
    messages = []
    for city in ("London", "Tokyo"):
        call = f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
        messages += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "content": call},
        ]
    messages.append({"role": "user", "content": "What is the weather in Paris?"})
    ask = {"model": "smollm2", "tools": [TOOL], "temperature": 0, "max_tokens": 60}
    async with sdk(gateway) as client:
        if stream:
            async with client.chat.completions.stream(messages=messages, **ask) as events:
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(messages=messages, **ask)).choices[0].message
        (made,) = message.tool_calls or ()
        assert (made.function.name, json.loads(made.function.arguments)) == ("get_weather", {"city": "Paris"})
        echo = {
            "role": "assistant",
            "content": message.content,
            "tool_calls": [
                {
                    "id": made.id,
                    "type": "function",
                    "function": {"name": made.function.name, "arguments": made.function.arguments},
                }
            ],
        }
        result = {"role": "tool", "tool_call_id": made.id, "content": "12 C"}
        await client.chat.completions.create(messages=[*messages, echo, result], **ask)
    first, second = await entries(gateway)
    assert second.parent_call_id == first.model_call_id
    assert second.prompt_token_ids[: first.length].tolist() == first.sequence.tolist()


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_gemini_s_sdk_streams_a_call_of_a_function_and_its_chain_goes_on(gateway: RunningGateway) -> None:
    tool = {"function_declarations": [{**TOOL["function"], "parameters_json_schema": TOOL["function"]["parameters"]}]}
    del tool["function_declarations"][0]["parameters"]
    config = types.GenerateContentConfig(
        tools=[types.Tool.model_validate(tool)],
        temperature=0,
        max_output_tokens=64,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    options = types.HttpOptions(base_url=f"{gateway.url}/rollout/R1")
    client = genai.Client(api_key="none", http_options=options)
    history = [types.Content(role="user", parts=[types.Part(text="What is the weather in Paris? Call get_weather.")])]
    for _ in range(2):
        async for chunk in await client.aio.models.generate_content_stream(
            model="smollm2", contents=list(history), config=config
        ):
            content = chunk.candidates[0].content if chunk.candidates else None
            history += [content] if content else []
        calls = [part.function_call for part in history[-1].parts or [] if part.function_call]
        answers = [
            types.Part.from_function_response(name=str(call.name), response={"output": "sunny"}) for call in calls
        ]
        history.append(types.Content(role="user", parts=answers or [types.Part(text="Go on.")]))
    await client.aio.aclose()
    client.close()
    first, second = await entries(gateway)
    assert (first.faults, second.faults, first.log_prob_kind) == ((), (), "raw")
    assert second.parent_call_id == first.model_call_id
    assert chunk.usage_metadata is not None
    assert chunk.usage_metadata.prompt_token_count == len(second.prompt_token_ids)
