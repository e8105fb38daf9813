"""SGLang's chat answers to events: what comes apart in a stream finds its place, or is marked."""

import json
from typing import Any

import pytest

from rolltape.chat import Delta, EngineEvent, Finished, Started
from rolltape.errors import EngineBroken, EngineRefused, RequestError
from rolltape.record import Outcome

from ..tape import entry, machine
from .recorded import answer, chat_reader, chunks, read, response, stream

STREAM = "chat_stream_sglext_hdr"
PROMPT = chunks(STREAM)[-1]["sglext"]["input_ids"]


def deltas(events: list[EngineEvent]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def said(delta: dict[str, Any], *log_probs: float | None, so_far: int | None = None, **more: Any) -> dict[str, Any]:
    content = [{"token": "t", "logprob": value} for value in log_probs]
    choice = {"index": 0, "delta": delta, "logprobs": {"content": content} if content else None, **more}
    return {"choices": [choice]} | ({} if so_far is None else {"usage": {"completion_tokens": so_far}})


def ids(*sampled: int, prompt: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    return {"choices": [], "sglext": {"input_ids": list(prompt), "output_ids": [list(sampled)]}}


def usage(completion: int, prompt: int = 2) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def test_a_recorded_stream_passes_its_text_and_then_its_ids() -> None:
    events = read(chat_reader(PROMPT), answer(STREAM))

    assert isinstance(events[0], Started)
    assert [delta.text for delta in deltas(events)] == ["The", " capital", " of", ""]
    assert deltas(events)[-1].token_ids == (504, 3575, 282)
    assert deltas(events)[-1].token_texts == ("The", " capital", " of")
    got = entry(events)
    assert got.prompt_token_ids.tolist() == PROMPT
    assert got.generation_log_probs.tolist() == pytest.approx([-2.374309778, -0.165059373, -0.01477831])
    assert got.faults == ()
    assert got.finish_reason == "length"


def test_a_recorded_stream_gives_the_same_events_split_at_every_byte() -> None:
    data = answer(STREAM)
    whole = repr(read(chat_reader(PROMPT), data))
    for at in range(len(data)):
        assert repr(read(chat_reader(PROMPT), data[:at], data[at:])) == whole
    assert repr(read(chat_reader(PROMPT), *(data[i : i + 1] for i in range(len(data))))) == whole


@pytest.mark.parametrize("name", ["chat_ids", "chat_sglext"])
def test_a_recorded_whole_answer_has_ids_where_it_tells_them(name: str) -> None:
    told = response(name)["choices"][0]

    got = entry(read(chat_reader(streamed=False), answer(name)))

    assert got.generation_token_ids.tolist() == told.get("response_token_ids", [])
    assert got.prompt_token_ids.tolist() == told.get("prompt_token_ids", [])
    assert got.ids_exact == (name == "chat_ids")
    assert len(got.generation_log_probs) == 3


def test_a_recorded_whole_answer_with_meta_info_is_exact() -> None:
    told = response("chat_ids_meta")
    choice = told["choices"][0]

    got = entry(read(chat_reader(streamed=False), json.dumps(told | {"choices": [choice], "usage": {}}).encode()))

    assert got.generation_token_ids.tolist() == choice["response_token_ids"] == [504, 3575, 282]
    assert got.generation_log_probs.tolist() == pytest.approx([-2.3743093, -0.1650594, -0.0147783])
    assert got.faults == ()
    assert bool(got.trainable.all())


def test_more_choices_than_the_one_asked_for_are_refused() -> None:
    with pytest.raises(EngineBroken, match="more than the one choice"):
        read(chat_reader(streamed=False), answer("chat_ids_meta"))
    with pytest.raises(EngineBroken, match="more than the one choice"):
        read(chat_reader(), stream({"choices": [{"index": 1, "delta": {}}]}))


def test_a_stop_token_whose_log_prob_the_stream_leaves_out_has_none_and_the_others_keep_theirs() -> None:
    end = said({}, finish_reason="stop", matched_stop=2)
    data = stream(
        said({"content": "a"}, -0.1, so_far=1), said({"content": "b"}, -0.3, so_far=3), end, ids(5, 6, 7, 2), usage(4)
    )

    got = entry(read(chat_reader([1, 2]), data))

    assert got.generation_token_ids.tolist() == [5, 6, 7, 2]
    assert got.trainable.tolist() == [True, False, True, False]
    assert not any(fault.startswith("engine") for fault in got.faults)


def test_log_probs_that_cannot_be_placed_are_left_as_many_as_they_are() -> None:
    end = said({}, finish_reason="stop")
    data = stream(said({"content": "a"}, -0.1), said({"content": "b"}, -0.3), end, ids(5, 6, 2), usage(3))

    got = entry(read(chat_reader([1, 2]), data))

    assert (len(got.generation_token_ids), len(got.generation_log_probs)) == (3, 2)
    assert not got.trainable.any()


def test_more_log_probs_than_tokens_so_far_are_marked() -> None:
    end = said({}, finish_reason="stop")
    data = stream(said({"content": "a"}, -0.1, -0.2, so_far=1), end, ids(5, 6), usage(2))

    assert any(fault.startswith("log_probs_length") for fault in entry(read(chat_reader([1, 2]), data)).faults)


@pytest.mark.parametrize(
    ("told", "fault"),
    [(ids(5, prompt=(1, 3)), "rendered otherwise"), ({"choices": []}, "does not confirm")],
)
def test_a_prompt_that_the_stream_does_not_confirm_is_marked(told: dict[str, Any], fault: str) -> None:
    data = stream(said({"content": "a"}, -0.1, so_far=1), said({}, finish_reason="stop"), told, usage(1))

    got = entry(read(chat_reader([1, 2]), data))

    assert not got.ids_exact
    assert any(fault in told for told in got.faults)


def test_reasoning_and_tool_calls_pass_as_they_come() -> None:
    first = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": '{"a":'}}
    second = {"index": 0, "id": None, "function": {"name": None, "arguments": " 1}"}}
    data = stream(
        said({"reasoning_content": "hm"}, -0.1, so_far=1),
        said({"tool_calls": [first]}),
        said({"tool_calls": [second]}),
        said({}, -0.2, -0.3, so_far=3),
        said({}, finish_reason="stop"),
        ids(5, 6, 2),
        usage(3),
    )
    call = machine()
    for event in read(chat_reader([1, 2]), data):
        call.feed(event, 0.0)

    message = call.message()
    assert message.reasoning == "hm"
    assert [(made.id, made.name, made.arguments) for made in message.tool_calls] == [("call_1", "f", '{"a": 1}')]
    got = call.completed(0.0, policy_version_end=None)
    assert (got.finish_reason, got.faults) == ("tool_calls", ())
    assert bool(got.trainable.all())


def test_a_whole_answer_has_its_reasoning_its_calls_and_its_stop_string() -> None:
    call = {"index": None, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": "x", "reasoning_content": "hm", "tool_calls": [call]}
    choice = {"message": message, "finish_reason": "stop", "matched_stop": "END", "response_token_ids": [5]}
    told = {"choices": [choice | {"prompt_token_ids": [1], "meta_info": {"output_token_logprobs": [[-0.1, 5, "x"]]}}]}

    started, delta, finished = read(chat_reader(streamed=False), json.dumps(told).encode())

    assert isinstance(started, Started)
    assert isinstance(delta, Delta)
    assert (delta.text, delta.reasoning, delta.tool_calls[0].arguments) == ("x", "hm", "{}")
    assert isinstance(finished, Finished)
    assert finished.stop_sequence == "END"


def test_an_aborted_whole_answer_is_a_failed_call_with_what_was_sampled() -> None:
    told = response("chat_ids")
    told["choices"][0]["finish_reason"] = "abort"
    call, reader = machine(), chat_reader(streamed=False)

    def run() -> None:
        list(reader.feed(json.dumps(told).encode()))
        for event in reader.close():
            call.feed(event, 0.0)

    with pytest.raises(EngineBroken, match="aborted"):
        run()

    got = call.ended(Outcome.FAILED, 0.0, "x", policy_version_end=None)
    assert got.generation_token_ids.tolist() == [55, 723, 6503]


@pytest.mark.parametrize(
    "end",
    [
        stream({"error": {"object": "error", "message": "gone", "code": 500}}),
        stream(said({}, finish_reason="abort")),
        b"",
        stream(),
        b'data: {"choices": [',
        stream("nonsense"),
        stream({"choices": [3]}),
    ],
)
def test_a_stream_that_breaks_is_never_finished_by_us(end: bytes) -> None:
    reader, got = chat_reader([1, 2]), []

    def run() -> None:
        got.extend(reader.feed(stream(said({"content": "a"}, -0.1), done=False) + end))
        got.extend(reader.close())

    with pytest.raises(EngineBroken):
        run()

    assert not reader.done


def test_the_recorded_refusal_keeps_sglangs_words() -> None:
    with pytest.raises(EngineRefused, match="not supported with streaming"):
        read(chat_reader(streamed=False), answer("chat_stream_return_token_ids"))


@pytest.mark.parametrize("garbage", [b"\x00\xff", b"data: \xff\n\n", b'data: {"choices": 3}\n\n', b"data: null\n\n"])
@pytest.mark.parametrize("streamed", [True, False])
def test_garbage_is_a_broken_engine_and_never_another_error(garbage: bytes, streamed: bool) -> None:
    with pytest.raises(RequestError):
        read(chat_reader([1], streamed=streamed), garbage)
