"""Recorded streams of a real llama.cpp server, replayed: ids, log-probs, text, stops and limits."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.chat import Delta, EngineEvent, Finished
from rolltape.engines.llamacpp.reading import CompletionReader, StopText, Vocabulary
from rolltape.engines.llamacpp.tools import ToolCallParser
from rolltape.errors import EngineBroken

DATA = Path(__file__).parents[2] / "data" / "llamacpp"
SPELLINGS = json.loads((DATA / "vocabulary.json").read_text())
VOCABULARY = Vocabulary({int(i): bytes(piece) for i, piece in SPELLINGS["pieces"].items()}, SPELLINGS["control"])


def recorded(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the server answered without streaming, and the chunks of the same generation streamed."""
    whole, *chunks = map(json.loads, (DATA / f"{name}.jsonl").read_text().splitlines())
    return whole["whole"], chunks


def read(
    chunks: list[dict[str, Any]],
    *,
    max_tokens: int = 1000,
    stops: tuple[str, ...] = (),
    tools: bool = False,
    vocabulary: Vocabulary = VOCABULARY,
) -> list[EngineEvent]:
    reader = CompletionReader(vocabulary, max_tokens, StopText(stops), ToolCallParser() if tools else None)
    events: list[EngineEvent] = []
    for chunk in chunks:
        if not reader.done:
            events += reader.feed(chunk)
    assert reader.done
    return events


def deltas(events: list[EngineEvent]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def ids(events: list[EngineEvent]) -> list[int]:
    return [token_id for delta in deltas(events) for token_id in delta.token_ids]


def log_probs(events: list[EngineEvent]) -> list[float | None]:
    return [value for delta in deltas(events) for value in delta.log_probs]


def text(events: list[EngineEvent]) -> str:
    return "".join(delta.text for delta in deltas(events))


def finished(events: list[EngineEvent]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def test_a_plain_reply_has_every_id_and_log_prob_and_keeps_the_stop_token() -> None:
    whole, chunks = recorded("story")

    events = read(chunks)

    assert ids(events) == whole["tokens"]
    assert ids(events)[-1] == 2
    assert list(zip(ids(events), log_probs(events), strict=True)) == [tuple(pair) for pair in whole["log_probs"]]
    assert text(events) == whole["content"]
    assert finished(events) == Finished("stop", len(whole["tokens"]), finished(events).cached_tokens)


def test_hidden_tokens_come_back_at_their_own_place_without_a_log_prob() -> None:
    whole, chunks = recorded("emoji")

    events = read(chunks, max_tokens=23)

    assert ids(events) == whole["tokens"][:23]
    told = iter(whole["log_probs"])
    for token_id, value in zip(ids(events), log_probs(events), strict=True):
        if value is not None:
            assert (token_id, value) == tuple(next(told))
    assert None in log_probs(events)
    assert next(told, None) is None
    assert finished(events).faults == ()


def test_text_never_holds_half_a_character() -> None:
    _, chunks = recorded("emoji")

    events = read(chunks, max_tokens=23)

    assert all("\ufffd" not in delta.text for delta in deltas(events))
    assert text(events) == "Repeat exactly: 😀🤖🎉🎉🎉🎉🎉"


def test_a_token_hidden_at_the_very_end_is_missing_and_marks_the_call() -> None:
    whole, chunks = recorded("emoji")

    events = read(chunks)

    assert ids(events) == whole["tokens"][:-1]
    assert finished(events).completion_tokens == len(whole["tokens"])
    assert finished(events).faults == ("generation_ids_missing: 1 tokens that end inside a character",)


@pytest.mark.parametrize("limit", range(1, 24))
def test_a_limit_inside_a_character_keeps_exactly_the_ids_before_it(limit: int) -> None:
    whole, chunks = recorded("emoji")

    events = read(chunks, max_tokens=limit)

    assert ids(events) == whole["tokens"][:limit]
    assert len(log_probs(events)) == limit
    assert finished(events).finish_reason == "length"
    assert finished(events).completion_tokens == limit
    assert "\ufffd" not in text(events)


def test_an_ambiguous_spelling_leaves_the_ids_missing_and_shifts_nothing() -> None:
    whole, chunks = recorded("emoji")
    twice = Vocabulary({**VOCABULARY.pieces, 99_999: VOCABULARY.pieces[10813]}, VOCABULARY.control)

    events = read(chunks, max_tokens=23, vocabulary=twice)

    assert [pair for pair in zip(ids(events), log_probs(events), strict=True) if pair[1] is not None] == [
        tuple(pair) for pair in whole["log_probs"]
    ]
    assert len(ids(events)) < 23
    assert finished(events).completion_tokens == 23
    assert finished(events).faults[0].startswith("generation_ids_missing: ")


def test_an_entry_of_another_token_gives_no_log_prob() -> None:
    whole, chunks = recorded("story")
    chunks[2]["completion_probabilities"][0]["id"] += 1

    events = read(chunks)

    assert ids(events) == whole["tokens"]
    assert [at for at, value in enumerate(log_probs(events)) if value is None] == [2]


@given(st.integers(1, 30))
def test_the_limit_counts_tokens(limit: int) -> None:
    whole, chunks = recorded("story")

    events = read(chunks, max_tokens=limit)

    assert ids(events) == whole["tokens"][:limit]
    assert finished(events).finish_reason == ("length" if limit < len(whole["tokens"]) else "stop")


def test_a_stop_string_cuts_the_text_and_keeps_the_ids_that_spell_it() -> None:
    whole, chunks = recorded("story")

    events = read(chunks, stops=("re enjoying",))

    assert text(events) == "I'm glad you'"
    assert ids(events) == whole["tokens"][: len(ids(events))]
    assert "".join(t for d in deltas(events) for t in d.token_texts) == "I'm glad you're enjoying"
    assert finished(events).finish_reason == "stop"


def test_text_held_for_a_stop_string_that_never_comes_is_not_lost() -> None:
    whole, chunks = recorded("story")

    events = read(chunks, stops=("? Never",))

    assert text(events) == whole["content"]


def test_a_recorded_tool_call_comes_out_once_with_all_its_ids() -> None:
    whole, chunks = recorded("tool_call")

    events = read(chunks, tools=True)

    calls = [call for delta in deltas(events) for call in delta.tool_calls]
    assert [(call.name, call.arguments) for call in calls] == [("get_weather", '{"city": "Paris"}')]
    assert text(events) == ""
    assert ids(events) == whole["tokens"]
    assert finished(events).finish_reason == "tool_calls"


def test_a_tool_call_that_the_limit_cuts_is_text_and_length() -> None:
    _, chunks = recorded("tool_call")

    events = read(chunks, tools=True, max_tokens=20)

    assert text(events).startswith("<tool_call>\n{")
    assert finished(events).finish_reason == "length"


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"tokens_predicted": "1"},
        {"tokens_predicted": 1},
        {"tokens_predicted": 1, "tokens": ["a"]},
        {"tokens_predicted": 1, "tokens": [1, 2]},
        {"error": {"message": "no"}},
        {"error": "no"},
    ],
)
def test_what_is_no_chunk_is_a_broken_engine(chunk: dict[str, Any]) -> None:
    with pytest.raises(EngineBroken):
        CompletionReader(VOCABULARY, 10, StopText(())).feed(chunk)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.data())
def test_stop_strings_do_not_care_how_the_text_was_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    stopper, out = StopText(stops), ""

    for start, end in itertools.pairwise([0, *cuts, len(text)]):
        if not stopper.stopped:
            out += stopper.feed(text[start:end])
    out += stopper.close()

    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert stopper.stopped == bool(ends)
    assert text.startswith(out)
    if not ends:
        assert out == text
    assert not any(stop in out for stop in stops)
