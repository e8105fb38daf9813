"""The scripted engine: its replies, its scripts, what it applies, and what closing it does."""

import asyncio
import re
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rolltape.chat import ChatRequest, Delta, EngineEvent, Finished, Message, Started, ToolCall
from rolltape.engines import Engine
from rolltape.errors import ConfigError, EngineRefused
from rolltape.testing.scripted import Fault, ScriptedEngine, Step, decode, encode, log_prob, render
from rolltape.testing.scripted.tokenizer import IM_END

BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def ask(text: str = "hi", **fields: Any) -> ChatRequest:
    return ChatRequest(model="scripted", messages=(Message("user", text),), **fields)


async def play(engine: Engine, request: ChatRequest, **sampling: Any) -> list[EngineEvent]:
    return [event async for event in engine.generate(request, sampling)]


def deltas(events: list[EngineEvent]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def ids(events: list[EngineEvent]) -> list[int]:
    return [token for delta in deltas(events) for token in delta.token_ids]


def text(events: list[EngineEvent]) -> str:
    return "".join(delta.text for delta in deltas(events))


def calls(events: list[EngineEvent]) -> list[tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    for piece in (piece for delta in deltas(events) for piece in delta.tool_calls):
        name, arguments = found.get(piece.index, (piece.name or "", ""))
        found[piece.index] = (name, arguments + piece.arguments)
    return list(found.values())


def finish(events: list[EngineEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def engine(*steps: Step, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(script=steps or None, **options)


# One reply


async def test_a_reply_starts_comes_in_pieces_and_finishes() -> None:
    request = ask()
    events = await play(engine(Step("Grüße 北", reasoning="hm"), chunk=3), request)
    started = events[0]
    assert isinstance(started, Started)
    assert started.prompt_token_ids is not None
    assert started.prompt_token_ids.tolist() == render(request).tolist()
    assert decode(render(request)) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert decode(ids(events)) == "<think>hm</think>Grüße 北<|im_end|>"
    assert [len(delta.token_ids) for delta in deltas(events)][:-1] == [3] * (len(deltas(events)) - 1)
    assert (text(events), "".join(d.reasoning for d in deltas(events))) == ("Grüße 北", "hm")
    assert finish(events) == Finished("stop", completion_tokens=len(ids(events)))


async def test_each_sampled_token_has_the_log_prob_of_its_id_and_place() -> None:
    events = await play(engine(Step("Grüße")), ask())
    start = len(render(ask()))
    given = [value for delta in deltas(events) for value in delta.log_probs]
    assert given == [log_prob(token, start + at) for at, token in enumerate(ids(events))]


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
async def test_a_character_is_shown_only_when_whole_however_the_ids_are_cut(chunk: int) -> None:
    events = await play(engine(Step("Grüße 北 😀"), chunk=chunk), ask())
    assert text(events) == "Grüße 北 😀"
    assert "\ufffd" not in text(events)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
async def test_tool_calls_come_with_id_and_name_first_and_arguments_verbatim(chunk: int) -> None:
    steps = Step("go", tool_calls=(("bash", '{ "command":\t"ü" '), ("read", ""), ("bash", "{}")))
    events = await play(engine(steps, chunk=chunk), ask())
    assert calls(events) == list(steps.tool_calls)
    assert finish(events).finish_reason == "tool_calls"
    pieces = [piece for delta in deltas(events) for piece in delta.tool_calls]
    named = [piece for piece in pieces if piece.id is not None]
    assert [(piece.index, piece.name) for piece in named] == [(0, "bash"), (1, "read"), (2, "bash")]
    assert len({piece.id for piece in named}) == 3
    assert text(events) == "go"


async def test_two_calls_never_share_a_tool_call_id() -> None:
    same = engine(*[Step(tool_calls=(("f", "{}"),))] * 2)
    first, second = [await play(same, ask()) for _ in range(2)]
    found = re.findall("call_[0-9a-f]{24}", str(first) + str(second))
    assert len(set(found)) == len(found) == 2


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_reply_that_was_cut_samples_no_end_token(reason: Any) -> None:
    events = await play(engine(Step("abc", finish_reason=reason)), ask())
    assert ids(events) == encode("abc")
    assert finish(events).finish_reason == reason


async def test_an_empty_reply_samples_the_end_token_alone() -> None:
    assert ids(await play(engine(Step()), ask())) == [IM_END]


# What is applied


async def test_max_tokens_cuts_and_is_reported() -> None:
    events = await play(engine(Step("abcdef")), ask(), max_tokens=4, temperature=0.5, seed=3)
    assert ids(events) == encode("abcd")
    assert finish(events) == Finished("length", completion_tokens=4)
    assert events[0].sampling_applied == {"max_tokens": 4, "temperature": 0.5, "seed": 3}  # type: ignore[union-attr]


async def test_max_tokens_is_clamped_to_the_context_that_is_left() -> None:
    room = 3
    small = engine(Step("abcdef"), context_length=len(render(ask())) + room)
    events = await play(small, ask(), max_tokens=32000)
    assert events[0].sampling_applied == {"max_tokens": room}  # type: ignore[union-attr]
    assert ids(events) == encode("abc")


async def test_a_prompt_that_fills_the_context_is_refused_in_known_words() -> None:
    with pytest.raises(EngineRefused, match=r"maximum context length is 10 tokens\. However") as caught:
        await play(engine(context_length=10), ask())
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize("chunk", [1, 4, 1000])
async def test_a_stop_string_stays_in_the_ids_and_out_of_the_text(chunk: int) -> None:
    events = await play(engine(Step("one Observation: two"), chunk=chunk), ask(), stop=["two", "Observation:"])
    assert decode(ids(events)) == "one Observation:"
    assert text(events) == "one "
    assert finish(events) == Finished("stop", completion_tokens=len("one Observation:"), stop_sequence="Observation:")


async def test_the_seed_changes_nothing() -> None:
    assert ids(await play(engine(), ask(), seed=1)) == ids(await play(engine(), ask(), seed=2))


async def test_an_image_is_refused_by_its_place() -> None:
    request = ChatRequest(model="m", messages=(Message("user", ({"type": "image_url"},)),))
    with pytest.raises(EngineRefused) as caught:
        await play(engine(), request)
    assert caught.value.param == "messages[0].content"


async def test_tokens_are_counted_as_rendered() -> None:
    request = ask("Grüße", tools=(BASH,))
    assert await engine().count_tokens(request) == len(render(request))


async def test_the_policy_version_of_the_moment_is_reported() -> None:
    served = ScriptedEngine(policy_version="7")
    assert (await play(served, ask()))[0].policy_version == "7"  # type: ignore[union-attr]
    served.policy_version = "8"
    assert finish(await play(served, ask())).policy_version == "8"


async def test_it_serves_one_model_by_the_name_it_was_given() -> None:
    served = ScriptedEngine("my-model", None, context_length=99)
    await served.start()
    assert [(model.name, model.context_length) for model in await served.models()] == [("my-model", 99)]
    assert await served.healthy()
    await served.close()
    await served.close()


@pytest.mark.parametrize("options", [{"chunk": 0}, {"context_length": 0}, {"delay": -1.0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ScriptedEngine(**options)


# Closing


async def test_closing_the_iterator_aborts_the_call() -> None:
    served = engine(Step("abcdefgh"), chunk=1)
    async with aclosing(served.generate(ask(), {})) as events:  # type: ignore[type-var]
        await anext(events)
        assert (served.started, served.alive, served.aborted) == (1, 1, 0)
    assert (served.started, served.alive, served.finished, served.aborted) == (1, 0, 0, 1)


async def test_cancelling_the_caller_aborts_the_call() -> None:
    served = engine(Step(fault=Fault.HANG))
    task = asyncio.create_task(play(served, ask()))
    await asyncio.sleep(0.01)
    assert served.alive == 1
    task.cancel()
    await asyncio.wait([task])
    assert (served.alive, served.aborted) == (0, 1)


async def test_a_call_that_ends_by_itself_counts_as_finished() -> None:
    served = engine()
    await play(served, ask(), top_k=5)
    assert (served.started, served.alive, served.finished, served.failed, served.aborted) == (1, 0, 1, 0, 0)
    assert list(served.seen) == [(ask(), {"top_k": 5})]


# Scripts


async def test_steps_are_consumed_in_order_and_the_default_reply_follows() -> None:
    served = engine(Step("one"), Step("two"))
    assert [text(await play(served, ask())) for _ in range(2)] == ["one", "two"]
    assert text(await play(served, ask())) == text(await play(engine(), ask()))


async def test_a_callable_is_asked_with_the_request_and_the_number_of_the_call() -> None:
    served = ScriptedEngine(script=lambda request, number: Step(f"{request.model} {number}"))
    assert [text(await play(served, ask())) for _ in range(2)] == ["scripted 0", "scripted 1"]


async def test_the_first_rule_of_a_file_that_fits_answers(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [
        {"match": "^boom", "fault": "error_500"},
        {"turn": 0, "text": "start", "tool_calls": [["bash", "{ raw"]]},
        {"match": "once", "times": 1, "text": "only once"},
        {"match": "o", "text": "an o"},
    ]
    file = tmp_path / "script.jsonl"
    file.write_text("\n".join(msgspec.json.encode(rule).decode() for rule in rules) + "\n\n")
    served = ScriptedEngine(url=f"file://{file}")
    first = await play(served, ask("hello"))
    assert (text(first), calls(first)) == ("start", [("bash", "{ raw")])

    def later(result: str) -> ChatRequest:
        asked = Message("assistant", "a", tool_calls=(ToolCall("c", "bash", "{}"),))
        return ChatRequest(model="m", messages=(Message("user", "x"), asked, Message("tool", result, tool_call_id="c")))

    assert [text(await play(served, later("once"))) for _ in range(2)] == ["only once", "an o"]
    assert text(await play(served, later("zzz"))) == text(await play(engine(), later("zzz")))
    with pytest.raises(Exception, match="on purpose"):
        await play(served, later("boom"))


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"txt": "a"}', '{"fault": "meteor"}', '{"match": "("}', '{"tool_calls": [["f", {}]]}']
)
def test_a_line_that_is_no_rule_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    file = tmp_path / "script.jsonl"
    file.write_text('{"text": "fine"}\n' + line)
    with pytest.raises(ConfigError, match=r"script\.jsonl:2"):
        ScriptedEngine(url=str(file))


def test_a_missing_file_and_two_scripts_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        ScriptedEngine(url=str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="not both"):
        ScriptedEngine(url=str(tmp_path / "none.jsonl"), script=[Step("a")])


async def test_without_a_script_a_bash_tool_is_used_twice_and_the_second_time_submits() -> None:
    served = engine()
    messages = [Message("user", "do it")]
    said = []
    for _ in range(3):
        events = await play(served, ChatRequest(model="m", tools=(BASH,), messages=tuple(messages)))
        said.append([msgspec.json.decode(arguments)["command"] for _, arguments in calls(events)])
        messages += [Message("assistant", text(events)), Message("tool", "ok", tool_call_id="c")]
    assert said == [["echo hello"], ["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"], []]


async def test_without_a_script_the_reply_depends_on_the_request_alone() -> None:
    one, two = engine(), engine()
    await play(one, ask("something before"))
    assert ids(await play(one, ask("a"))) == ids(await play(two, ask("a")))
    assert ids(await play(one, ask("a"))) != ids(await play(two, ask("b")))
    assert calls(await play(one, ask(tools=(BASH,), tool_choice="none"))) == []
