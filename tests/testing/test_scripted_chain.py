"""The template is append-only: a history that is echoed verbatim, over the wire, extends what was sampled, exactly."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.chat import ChatRequest, Delta, Finished, Json, Started
from rolltape.testing.scripted import ScriptedEngine, Step
from rolltape.wire.openai_chat import OpenAIChat

PROTOCOL = OpenAIChat()
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Grüße", "parameters": {"type": "object"}}}]


async def turn(engine: ScriptedEngine, body: Json) -> tuple[list[int], list[int], Json]:
    """(prompt ids, sampled ids, the assistant message as a harness echoes it) of one call."""
    request: ChatRequest = PROTOCOL.decode("/v1/chat/completions", msgspec.json.encode(body), {})
    prompt: list[int] = []
    sampled: list[int] = []
    message: Json = {"role": "assistant", "content": ""}
    calls: dict[int, Json] = {}
    async for event in engine.generate(request, request.sampling):
        match event:
            case Started(prompt_token_ids=ids):
                assert ids is not None
                prompt = ids.tolist()
            case Delta():
                sampled += event.token_ids
                message["content"] += event.text
                if event.reasoning:
                    message["reasoning_content"] = message.get("reasoning_content", "") + event.reasoning
                for piece in event.tool_calls:
                    new = {"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}}
                    calls.setdefault(piece.index, new)["function"]["arguments"] += piece.arguments
            case Finished():
                pass
    if calls:
        message["tool_calls"] = list(calls.values())
    return prompt, sampled, message


names = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1, max_size=5)
steps = st.builds(
    Step,
    text=st.text(max_size=12),
    reasoning=st.text(max_size=8),
    tool_calls=st.lists(st.tuples(names, st.text(max_size=12)), max_size=3).map(tuple),
    finish_reason=st.sampled_from([None, None, "length"]),
)
inputs = st.lists(st.tuples(st.sampled_from(["user", "tool", "system"]), st.text(max_size=8)), min_size=1, max_size=3)


@settings(deadline=None)
@given(st.lists(st.tuples(steps, inputs), min_size=1, max_size=5), st.integers(1, 9), st.booleans())
async def test_a_chain_that_is_echoed_over_the_wire_extends_exactly(
    turns: list[tuple[Step, list[tuple[str, str]]]], chunk: int, with_tools: bool
) -> None:
    engine = ScriptedEngine(script=[step for step, _ in turns], chunk=chunk)
    body: Json = {"model": "m", "messages": [{"role": "developer", "content": "Be terse."}]}
    if with_tools:
        body["tools"] = TOOLS
    before: list[int] = []
    for step, said in turns:
        prompt, sampled, message = await turn(engine, body)
        assert prompt[: len(before)] == before
        assert message["content"] == step.text
        before = prompt + sampled
        inputs = [{"role": role, "content": text, "tool_call_id": "c"} for role, text in said]
        body["messages"] += [message, *inputs]
    prompt, _, _ = await turn(engine, body)
    assert prompt[: len(before)] == before


@pytest.mark.parametrize(
    "rewritten",
    [
        {"content": "yes "},
        {"reasoning_content": None},
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
    ],
)
async def test_a_history_that_is_rewritten_does_not_extend(rewritten: Json) -> None:
    step = Step("yes", reasoning="hm", tool_calls=(("f", '{"a":1}'),))
    engine = ScriptedEngine(script=[step])
    body: Json = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    prompt, sampled, message = await turn(engine, body)
    body["messages"] += [message | rewritten, {"role": "user", "content": "go on"}]
    again, _, _ = await turn(engine, body)
    assert again[: len(prompt)] == prompt
    assert again[: len(prompt) + len(sampled)] != prompt + sampled
