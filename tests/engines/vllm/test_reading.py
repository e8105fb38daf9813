"""vLLM's recorded answers to events: the same however the bytes are cut, and nothing invented where something lacks."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rolltape.chat import Delta, EngineEvent, Finished, Started
from rolltape.engines.vllm.asking import Asked
from rolltape.engines.vllm.reading import VllmReader
from rolltape.errors import EngineBroken, EngineRefused, RequestError
from rolltape.record import LogProbKind, Outcome

from ..tape import entry, machine

DATA = Path(__file__).parents[2] / "data" / "vllm"
RECORDED = ("chat", "tool_call", "reasoning", "named_tool_cut", "completion")


def recorded(name: str) -> bytes:
    return (DATA / f"{name}.sse").read_bytes()


def reader(context: int | None = None, streamed: bool = True, **applied: Any) -> VllmReader:
    return VllmReader(Asked("/v1/chat/completions", {}, applied, LogProbKind.RAW), context, streamed)


def read(*reads: bytes, **options: Any) -> list[EngineEvent]:
    answer = reader(**options)
    events = [event for data in reads for event in answer.feed(data)]
    return [*events, *answer.close()]


def stream(*chunks: dict[str, Any] | str, done: bool = True) -> bytes:
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])]).encode()


def deltas(events: list[EngineEvent]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def chunks(name: str) -> list[dict[str, Any]]:
    lines = recorded(name).decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]


@pytest.mark.parametrize("name", RECORDED)
def test_all_ids_and_log_probs_of_a_recorded_stream_arrive_and_the_entry_is_without_fault(name: str) -> None:
    choices = [choice for chunk in chunks(name) for choice in chunk["choices"]]
    ids = [token for choice in choices for token in choice.get("token_ids") or ()]

    got = entry(read(recorded(name)))

    assert got.generation_token_ids.tolist() == ids
    assert len(ids) > 3
    assert got.faults == ()
    assert bool(got.trainable.all())
    assert len(got.prompt_token_ids) > 2


@pytest.mark.parametrize("name", RECORDED)
def test_a_stream_gives_the_same_events_split_at_every_byte(name: str) -> None:
    data = recorded(name)
    whole = read(data)
    step = max(len(data) // 400, 1)
    for at in range(0, len(data), step):
        assert repr(read(data[:at], data[at:])) == repr(whole)
    assert repr(read(*(data[i : i + 1] for i in range(len(data))))) == repr(whole)


def test_ids_that_come_while_a_parser_holds_text_back_are_kept() -> None:
    silent = [d for d in deltas(read(recorded("tool_call"))) if d.token_ids and not (d.text or d.tool_calls)]

    assert len(silent) > 3
    assert all(len(d.log_probs) == len(d.token_ids) for d in silent)


def test_a_tool_call_comes_out_in_pieces_that_make_one_call() -> None:
    call = machine()
    for event in read(recorded("tool_call")):
        call.feed(event, 0.0)

    (made,) = call.message().tool_calls

    assert made.name == "get_weather"
    assert json.loads(made.arguments).keys() == {"city"}
    assert call.finished is not None
    assert call.finished.finish_reason == "tool_calls"


def test_reasoning_and_text_are_told_apart() -> None:
    said = [choice["delta"] for chunk in chunks("reasoning") for choice in chunk["choices"]]

    got = deltas(read(recorded("reasoning")))

    assert "".join(d.reasoning for d in got) == "".join(delta.get("reasoning") or "" for delta in said) != ""
    assert "".join(d.text for d in got) == "".join(delta.get("content") or "" for delta in said) != ""


def test_the_older_name_of_reasoning_is_read_too() -> None:
    said = {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": "stop"}]}

    assert [d.reasoning for d in deltas(read(stream(said)))] == ["hm"]


def test_a_completion_has_its_prompt_ids_in_the_choice() -> None:
    events = read(recorded("completion"))

    assert isinstance(events[0], Started)
    assert events[0].prompt_token_ids is not None
    assert events[0].prompt_token_ids.tolist() == [1, 2, 3]
    assert "".join(d.text for d in deltas(events))


def test_an_answer_that_is_no_stream_gives_the_same_record() -> None:
    whole = (DATA / "whole.json").read_bytes()

    got = entry(read(whole, streamed=False))

    choice = json.loads(whole)["choices"][0]
    assert got.generation_token_ids.tolist() == choice["token_ids"]
    assert got.finish_reason == "tool_calls"
    assert got.faults == ()


def test_max_tokens_is_recorded_as_what_the_prompt_leaves() -> None:
    prompt = len(chunks("chat")[0]["prompt_token_ids"])

    (started,) = (e for e in read(recorded("chat"), context=prompt + 7, max_tokens=100) if isinstance(e, Started))

    assert started.sampling_applied == {"max_tokens": 7}


def test_steps_without_a_chunk_show_in_the_count() -> None:
    """ST-01"""
    got = entry(
        read(
            stream(
                {"prompt_token_ids": [1, 10, 11], "choices": [{"delta": {"role": "assistant"}}]},
                {"choices": [{"token_ids": [58], "logprobs": lp(-0.2), "delta": {"content": "x"}}]},
                {"choices": [{"token_ids": [59, 2], "logprobs": lp(-0.1, -0.1), "delta": {}, "finish_reason": "stop"}]},
                {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 14}},
            )
        )
    )

    assert got.generation_token_ids.tolist() == [58, 59, 2]
    assert not got.ids_exact
    assert "recorded 3, the engine counts 14" in got.faults[0]


def lp(*values: float | None) -> dict[str, Any]:
    return {"content": [{"token": "t", "logprob": value} for value in values]}


def test_a_reply_of_no_tokens_is_recorded_as_one() -> None:
    """ST-04"""
    got = entry(
        read(
            stream(
                {"prompt_token_ids": [1, 10, 11], "choices": [{"delta": {"role": "assistant", "content": ""}}]},
                {"choices": [{"delta": {}, "finish_reason": "stop"}]},
                {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}},
            )
        )
    )

    assert (got.prompt_token_ids.tolist(), got.generation_token_ids.tolist()) == ([1, 10, 11], [])
    assert got.faults == ()


def test_a_character_and_an_event_border_split_between_reads_lose_neither_text_nor_id() -> None:
    """ST-05, and its stream says no reason: it is broken in the end, and its ids are kept."""
    hexes = (
        "646174613a7b2263686f69636573223a5b7b22746f6b656e5f696473223a5b37375d2c2264656c7461223a7b22636f6e74656e74223a22e58c",
        "97227d7d5d7d0d0a0d",
        "0a646174613a205b444f4e455d0d0a0d0a",
    )
    first, second, last = map(bytes.fromhex, hexes)
    answer = reader()
    events = [*answer.feed(first), *answer.feed(second)]
    with pytest.raises(EngineBroken, match="without saying why"):
        list(answer.feed(last))

    assert [(d.text, d.token_ids) for d in deltas(events)] == [("北", (77,))]


@pytest.mark.parametrize("count", [60_000, 800_000])
def test_a_line_of_any_length_is_one_chunk(count: int) -> None:
    """ST-06"""
    data = stream(
        {"prompt_token_ids": list(range(100, 100 + count)), "choices": [{"delta": {"role": "assistant"}}]},
        {
            "choices": [
                {"token_ids": [5, 2], "logprobs": lp(-1, -1), "delta": {"content": "x"}, "finish_reason": "stop"}
            ]
        },
    )

    got = entry(read(*(data[i : i + 65536] for i in range(0, len(data), 65536))))

    assert len(got.prompt_token_ids) == count
    assert got.generation_token_ids.tolist() == [5, 2]


@pytest.mark.parametrize(
    "end",
    [
        stream({"error": {"message": "idle timeout", "code": 504}}),  # ST-07
        stream({"object": "error", "message": "gone", "code": 500}),
        b"",  # ST-08
        stream(),
        b'data: {"choices": [{"token_',
        stream("nonsense"),
        stream("[1]"),
        stream({"choices": [{"delta": {}, "finish_reason": "abort"}]}),
    ],
)
def test_a_stream_that_breaks_keeps_its_ids_and_is_never_finished_by_us(end: bytes) -> None:
    call, answer = machine(), reader()
    start = {"choices": [{"token_ids": [5, 6], "logprobs": lp(-0.1, -0.2), "delta": {"content": "ab"}}]}

    def run() -> None:
        for event in answer.feed(stream(start, done=False) + end):
            call.feed(event, 0.0)
        list(answer.close())

    with pytest.raises(EngineBroken):
        run()

    got = call.ended(Outcome.FAILED, 0.0, "broken", policy_version_end=None)
    assert call.finished is None
    assert got.generation_token_ids.tolist() == [5, 6]


def test_a_refusal_inside_the_stream_before_anything_started_is_a_refusal() -> None:
    with pytest.raises(EngineRefused, match="no such grammar"):
        read(stream({"error": {"message": "no such grammar", "code": 400}}))


def test_ids_that_a_proxy_moved_are_found_and_ids_that_are_nowhere_are_marked() -> None:
    """ST-13"""
    moved = {"choices": [{"message": {"content": "x"}, "provider_specific_fields": {"token_ids": [5, 2]}}]}
    answer = moved | {"prompt_token_ids": [1, 10]}
    answer["choices"][0] |= {"finish_reason": "stop"}
    bare = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}

    first = entry(read(json.dumps(answer).encode(), streamed=False))
    second = entry(read(json.dumps(bare).encode(), streamed=False))

    assert first.generation_token_ids.tolist() == [5, 2]
    assert not second.ids_exact
    assert {fault.partition(":")[0] for fault in second.faults} >= {"generation_ids_missing", "prompt_ids_missing"}


def test_log_probs_that_are_no_numbers_are_kept_as_unknown_and_never_as_certain() -> None:
    """LP-03"""
    line = (
        '{"prompt_token_ids": [1], "choices": [{"token_ids": [60, 61, 62, 63, 2], "delta": {}, "logprobs": '
        '{"content": [{"logprob": -0.1}, {"logprob": null}, {"logprob": -Infinity}, {"logprob": NaN}, '
        '{"logprob": -9999.0}]}, "finish_reason": "stop"}]}'
    )

    got = entry(read(stream(line)))

    assert got.generation_log_probs.tolist()[0] == pytest.approx(-0.1)
    assert [math.isfinite(value) for value in got.generation_log_probs] == [True, False, False, False, False]
    assert got.trainable.tolist() == [True, False, False, False, False]
    assert json.loads(json.dumps(got.to_json(), allow_nan=False))["generation_log_probs"][1:] == [None] * 4


def test_unequal_numbers_of_ids_and_log_probs_stay_as_they_came() -> None:
    data = stream({"choices": [{"token_ids": [5, 2], "logprobs": lp(-1), "delta": {}, "finish_reason": "stop"}]})

    got = entry(read(data))

    assert (len(got.generation_token_ids), len(got.generation_log_probs)) == (2, 1)
    assert not got.trainable.any()


def test_log_probs_that_came_apart_from_their_ids_are_marked_though_the_sums_agree() -> None:
    first = {"choices": [{"token_ids": [5, 6], "logprobs": lp(-1), "delta": {}}]}
    second = {"choices": [{"token_ids": [2], "logprobs": lp(-1, -1), "delta": {}, "finish_reason": "stop"}]}

    got = entry(read(stream(first, second)))

    assert any(fault.startswith("log_probs_length") for fault in got.faults)


def test_a_prompt_that_the_engine_counts_otherwise_is_marked() -> None:
    data = recorded("chat").replace(b'"prompt_tokens":26', b'"prompt_tokens":90')

    assert not entry(read(data)).ids_exact


def test_nothing_that_is_read_after_the_end_changes_it() -> None:
    answer = reader()
    events = list(answer.feed(recorded("chat")))

    assert isinstance(events[-1], Finished)
    assert answer.done
    assert list(answer.close()) == []


@pytest.mark.parametrize("garbage", [b"\x00\xff", b"data: \xff\n\n", b'data: {"choices": 3}\n\n', b"data: null\n\n"])
def test_garbage_is_a_broken_engine_and_never_another_error(garbage: bytes) -> None:
    with pytest.raises(RequestError):
        read(garbage)
