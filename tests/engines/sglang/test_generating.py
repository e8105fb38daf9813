"""SGLang's native answers to events: each position once, however the chunks repeat it and however they are cut."""

import json
from typing import Any

import pytest

from rolltape.chat import Delta, EngineEvent, Finished, Started
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError
from rolltape.record import Outcome

from ..tape import entry, machine
from .recorded import answer, chunks, generate_reader, read, recording, stream

WHOLE = ("generate", "generate_after_update", "chat_stop", "raw_T0.5")


def deltas(events: list[EngineEvent]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def chunk(ids: Any, entries: Any, ended: Any = None, text: str = "", **meta: Any) -> dict[str, Any]:
    told = {"finish_reason": ended, "output_token_logprobs": entries, **meta}
    return {"text": text, "meta_info": told} | ({} if ids is None else {"output_ids": ids})


LENGTH = {"type": "length", "length": 3}


def test_a_recorded_stream_gives_each_position_once() -> None:
    last = chunks("generate_stream")[-1]
    prompt = recording("generate_stream")["request"]["input_ids"]

    events = read(generate_reader(prompt), answer("generate_stream"))
    got = entry(events)

    assert got.generation_token_ids.tolist() == last["output_ids"]
    told = [value for value, *_ in last["meta_info"]["output_token_logprobs"]]
    assert got.generation_log_probs.tolist() == pytest.approx(told)
    assert [delta.text for delta in deltas(events)] == ["The", " capital", " of"]
    assert got.prompt_token_ids.tolist() == prompt
    assert got.finish_reason == "length"
    assert got.faults == ()
    assert bool(got.trainable.all())


def test_a_recorded_stream_gives_the_same_events_split_at_every_byte() -> None:
    data = answer("generate_stream")
    whole = repr(read(generate_reader([1]), data))
    for at in range(len(data)):
        assert repr(read(generate_reader([1]), data[:at], data[at:])) == whole
    assert repr(read(generate_reader([1]), *(data[i : i + 1] for i in range(len(data))))) == whole


@pytest.mark.parametrize("name", WHOLE)
def test_a_recorded_answer_that_is_no_stream_gives_the_same_record(name: str) -> None:
    told = json.loads(answer(name))

    got = entry(read(generate_reader(recording(name)["request"]["input_ids"], streamed=False), answer(name)))

    assert got.generation_token_ids.tolist() == told["output_ids"]
    assert got.faults == ()
    assert len(got.generation_log_probs) == len(told["output_ids"])


def test_a_sampled_stop_token_is_kept_and_not_shown() -> None:
    events = read(generate_reader([1], streamed=False), answer("chat_stop").replace(b'"prompt_tokens": 26', b'"x": 0'))

    assert entry(events).generation_token_ids.tolist()[-1] == 2
    assert "".join(delta.text for delta in deltas(events)) == "The capital of France is Paris."
    assert isinstance(events[-1], Finished)
    assert (events[-1].finish_reason, events[-1].stop_sequence) == ("stop", None)


def test_increments_of_ids_beside_cumulative_log_probs_are_counted_once() -> None:
    """ST-02"""
    first = chunk([5], [[-0.1, 5]])
    second = chunk([6, 7], [[-0.1, 5], [-0.2, 6], [-0.3, 7]], LENGTH, completion_tokens=3)

    got = entry(read(generate_reader([1]), stream(first, second)))

    assert got.generation_token_ids.tolist() == [5, 6, 7]
    assert got.generation_log_probs.tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert got.faults == ()


def test_a_stop_token_that_a_layer_hides_from_the_ids_is_kept() -> None:
    """ST-16"""
    stop = {"type": "stop", "matched": 2}
    entries = [[-0.1, 60], [-0.2, 61], [-0.05, 2]]
    events = read(generate_reader([1]), stream(chunk([60, 61], entries, stop, "ab", completion_tokens=3)))

    got = entry(events)

    assert got.generation_token_ids.tolist() == [60, 61, 2]
    assert got.generation_log_probs.tolist() == pytest.approx([-0.1, -0.2, -0.05])
    assert got.faults == ()
    assert "".join(delta.text for delta in deltas(events)) == "ab"


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("form", ["cumulative", "increments", "ids only", "ids only in increments"])
def test_every_form_of_chunks_gives_the_same_tokens_and_text(form: str, counted: bool) -> None:
    """Of tokens that repeat too, where the server says how many there are."""
    ids = [5, 5, 6, 5, 5, 7] if counted else [5, 6, 7, 8, 9, 4]
    texts = ["a"] * 6 if counted else list("abcdef")
    made = []
    for end in range(1, 7):
        start = end - 1 if "increments" in form else 0
        entries = [[-0.5, token, None] for token in ids[start:end]] if "only" not in form else []
        count = {"completion_tokens": end, "output_token_logprobs_length": end} if counted else {}
        made.append(chunk(ids[start:end], entries, LENGTH if end == 6 else None, "".join(texts[start:end]), **count))

    events = read(generate_reader([1]), stream(*made))

    got = entry(events)
    assert got.generation_token_ids.tolist() == ids
    assert "".join(delta.text for delta in deltas(events)) == "".join(texts)
    assert not any(fault.startswith("engine") for fault in got.faults)
    assert bool(got.trainable.all()) == ("only" not in form)


def test_ids_that_disagree_with_those_of_the_log_probs_are_a_fault() -> None:
    got = entry(read(generate_reader([1]), stream(chunk([60, 99], [[-0.1, 60], [-0.2, 61]], LENGTH))))

    assert got.generation_token_ids.tolist() == [60, 61]
    assert not got.ids_exact
    assert "disagree" in got.faults[0]


def test_a_missing_id_that_is_no_stop_token_is_a_fault() -> None:
    ended = {"type": "stop", "matched": "END"}

    assert not entry(read(generate_reader([1]), stream(chunk([60], [[-0.1, 60], [-0.2, 61]], ended)))).ids_exact


def test_positions_that_never_came_are_a_fault() -> None:
    made = (
        chunk(None, [[-0.1, 5]], output_token_logprobs_length=1),
        chunk(None, [[-0.1, 9]], LENGTH, output_token_logprobs_length=4, completion_tokens=4),
    )

    got = entry(read(generate_reader([1]), stream(*made)))

    assert not got.ids_exact
    assert any("from position 3 on after 1" in fault for fault in got.faults)


def test_a_log_prob_of_none_or_of_minus_infinity_is_unknown() -> None:
    entries = [[None, 5, None], [-3.4028234663852886e38, 6, None], [-0.5, 7, None]]

    got = entry(read(generate_reader([1]), stream(chunk([5, 6, 7], entries, LENGTH))))

    assert got.trainable.tolist() == [False, False, True]


def test_the_weights_that_sampled_are_recorded_where_they_have_a_name() -> None:
    (started, *_, finished) = read(generate_reader([1], streamed=False), answer("generate_after_update"))
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert (started.policy_version, finished.policy_version) == ("step1", "step1")
    assert finished.policy_spans == ((0, 3, "step1"),)

    (unnamed, *_, end) = read(generate_reader([1], streamed=False), answer("generate"))
    assert isinstance(unnamed, Started)
    assert isinstance(end, Finished)
    assert (unnamed.policy_version, end.policy_version, end.policy_spans) == (None, None, ())


def test_the_prompt_that_the_server_tells_wins_over_the_one_it_was_sent() -> None:
    told = chunk([5], [[-0.1, 5]], LENGTH, prompt_tokens=2) | {"prompt_token_ids": [8, 9]}

    assert entry(read(generate_reader([8, 9, 10]), stream(told))).prompt_token_ids.tolist() == [8, 9]


def test_a_prompt_that_the_engine_counts_otherwise_is_marked() -> None:
    assert not entry(read(generate_reader([8]), stream(chunk([5], [[-0.1, 5]], LENGTH, prompt_tokens=2)))).ids_exact


def test_the_string_that_ended_it_is_told() -> None:
    ended = {"type": "stop", "matched": "END"}
    *_, finished = read(generate_reader([1]), stream(chunk([5], [[-0.1, 5]], ended)))

    assert isinstance(finished, Finished)
    assert (finished.finish_reason, finished.stop_sequence) == ("stop", "END")


@pytest.mark.parametrize(
    "end",
    [
        stream({"error": {"message": "gone", "code": 500}}),
        stream(chunk([5], [[-0.1, 5]], {"type": "abort", "message": "Abort before prefill"})),
        b"",
        stream(),
        b'data: {"text": "a", "output',
        stream("nonsense"),
        stream("[1]"),
        stream({"text": "x"}),
        stream({"text": "x", "meta_info": {"output_token_logprobs": [7]}}),
    ],
)
def test_a_stream_that_breaks_keeps_its_ids_and_is_never_finished_by_us(end: bytes) -> None:
    call, reader = machine(), generate_reader([1])

    def run() -> None:
        for event in reader.feed(stream(chunk([5], [[-0.1, 5]], text="a"), done=False) + end):
            call.feed(event, 0.0)
        list(reader.close())

    with pytest.raises(EngineBroken):
        run()

    assert call.finished is None
    assert call.ended(Outcome.FAILED, 0.0, "x", policy_version_end=None).generation_token_ids.tolist() == [5]


@pytest.mark.parametrize(
    ("status", "error"), [(400, EngineRefused), (503, EngineUnavailable), (500, EngineBroken), (None, EngineBroken)]
)
def test_an_error_before_the_first_token_is_what_its_status_says(status: int | None, error: type[RequestError]) -> None:
    ended = {"type": "abort", "message": "no", "status_code": status}
    for told in ({"error": {"message": "no", "code": status}}, chunk([], [], ended)):
        with pytest.raises(error, match="no"):
            read(generate_reader([1]), stream(told))
