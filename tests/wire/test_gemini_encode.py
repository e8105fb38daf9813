"""Gemini replies: whole, as events and as a growing array; what a harness may act on is marked."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.chat import (
    ChatRequest,
    Delta,
    EngineEvent,
    Finished,
    FinishReason,
    Message,
    Reply,
    Started,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError
from rolltape.sse import SseParser
from rolltape.wire import Frame, ListedModel
from rolltape.wire.gemini import Gemini

PROTOCOL = Gemini()
THINKS = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
EVENTS = ChatRequest(model="m", stream=True, aside={"alt": "sse", **THINKS})
ARRAY = ChatRequest(model="m", stream=True, aside=THINKS)
SIGNED = ["cm9sbHRhcGUuZ2VuLTEuMA==", "cm9sbHRhcGUuZ2VuLTEuMQ=="]
TALK: list[EngineEvent] = [
    Started(np.arange(5, dtype=np.int32), {}),
    Delta((7, 8), (-0.5, -0.25), reasoning="hm"),
    Delta((9,), (-1.0,)),
    Delta((10, 11), (-0.125, -2.0), text="北x"),
    Delta((12,), (-0.5,), tool_calls=(ToolCallDelta(0, "call_a", "bash", '{"comm'),)),
    Delta((13,), (-0.5,), tool_calls=(ToolCallDelta(0, arguments='and": "ls"}'),)),
    Delta((14,), (-0.5,), tool_calls=(ToolCallDelta(1, None, "read"), ToolCallDelta(1, arguments="{}"))),
    Finished("tool_calls", completion_tokens=8, cached_tokens=2),
]
CALLS = [
    {"functionCall": {"id": "call_a", "name": "bash", "args": {"command": "ls"}}, "thoughtSignature": SIGNED[0]},
    {"functionCall": {"id": "gen-1_1", "name": "read", "args": {}}, "thoughtSignature": SIGNED[1]},
]
PARTS = [{"text": "hm", "thought": True}, {"text": "北x"}, *CALLS]
COUNTS = {
    "promptTokenCount": 5, "candidatesTokenCount": 6, "totalTokenCount": 13, "thoughtsTokenCount": 2,
    "cachedContentTokenCount": 2,
}  # fmt: skip


def frames(events: Iterable[EngineEvent], request: ChatRequest = EVENTS) -> list[Frame]:
    encoder = PROTOCOL.encoder(request, reply_id="gen-1", created=0)
    return [*encoder.open(), *(frame for event in events for frame in encoder.encode(event))]


def chunks(sent: Sequence[Frame], request: ChatRequest = EVENTS) -> list[dict[str, Any]]:
    data = b"".join(frame.data for frame in sent)
    if request is ARRAY:
        return msgspec.json.decode(data, type=list[dict[str, Any]])
    return [msgspec.json.decode(event.data) for event in SseParser().feed(data)]


def parts(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    return chunk["candidates"][0]["content"]["parts"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("request_", [EVENTS, ARRAY], ids=["events", "array"])
def test_a_stream_in_either_form_holds_the_same_chunks(request_: ChatRequest) -> None:
    got = chunks(frames(TALK, request_), request_)
    assert [part for chunk in got for part in parts(chunk)] == PARTS
    assert [chunk["candidates"][0].get("finishReason") for chunk in got] == [None, None, "STOP"]
    assert got[-1]["usageMetadata"] == COUNTS
    assert {(chunk["responseId"], chunk["modelVersion"]) for chunk in got} == {("gen-1", "m")}


def test_a_whole_reply_says_the_same() -> None:
    calls = (ToolCall("call_a", "bash", '{"command": "ls"}'), ToolCall("", "read", ""))
    said = Message("assistant", "北x", reasoning="hm", tool_calls=calls)
    body = PROTOCOL.encode_reply(EVENTS, Reply("gen-1", "served", 0, said, "tool_calls", Usage(5, 8, 2, 2)))
    got = msgspec.json.decode(body)
    assert (parts(got), got["usageMetadata"], got["modelVersion"]) == (PARTS, COUNTS, "m")


@pytest.mark.parametrize("request_", [EVENTS, ARRAY], ids=["events", "array"])
def test_calls_and_the_end_are_what_a_harness_acts_on(request_: ChatRequest) -> None:
    sent = frames(TALK, request_)
    acting = [frame.acting for frame in sent]
    assert acting == sorted(acting)
    free = b"".join(frame.data for frame in sent if not frame.acting)
    assert b"functionCall" not in free
    assert b"finishReason" not in free
    assert "北x".encode() in free


def test_thoughts_are_shown_only_to_who_asked_for_them() -> None:
    plain = ChatRequest(model="m", stream=True, aside={"alt": "sse"})
    assert [part for chunk in chunks(frames(TALK, plain)) for part in parts(chunk)] == PARTS[1:]
    said = Message("assistant", "x", reasoning="hm")
    got = msgspec.json.decode(PROTOCOL.encode_reply(plain, Reply("gen-1", "m", 0, said, "stop", Usage(5, 3))))
    assert [part["text"] for part in parts(got)] == ["x"]


@pytest.mark.parametrize(("arguments", "args"), [
    ('{"a": 1}', {"a": 1}), ("", {}), ('{"a": ', {"__unparsedArguments": '{"a": '}),
    ("[1]", {"__unparsedArguments": "[1]"}),
])  # fmt: skip
def test_arguments_are_an_object_or_the_text_that_was_sampled(arguments: str, args: dict[str, Any]) -> None:
    sent = frames([Delta(tool_calls=(ToolCallDelta(0, "c", "f", arguments),)), Finished("tool_calls")])
    assert parts(chunks(sent)[-1])[0]["functionCall"]["args"] == args


@pytest.mark.parametrize(
    ("finish", "word"),
    [("stop", "STOP"), ("length", "MAX_TOKENS"), ("content_filter", "SAFETY"), ("tool_calls", "STOP")],
)
def test_how_generation_ended_has_the_protocol_s_word(finish: FinishReason, word: str) -> None:
    (last,) = chunks(frames([Finished(finish)]))
    assert last["candidates"][0]["finishReason"] == word
    assert parts(last) == [{"text": "", "thoughtSignature": SIGNED[0]}]


def test_a_new_id_starts_a_new_call_whatever_its_index() -> None:
    pieces = tuple(ToolCallDelta(0, f"c{n}", "f", f'{{"n": {n}}}') for n in range(2))
    sent = frames([Delta(tool_calls=pieces), Finished("tool_calls")])
    assert [part["functionCall"]["args"] for part in parts(chunks(sent)[-1])] == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize("request_", [EVENTS, ARRAY], ids=["events", "array"])
@pytest.mark.parametrize("shown", range(5))
def test_a_broken_stream_ends_in_an_error_object_that_is_no_event(request_: ChatRequest, shown: int) -> None:
    encoder = PROTOCOL.encoder(request_, reply_id="gen-1", created=0)
    sent = [*encoder.open(), *(frame for event in TALK[:shown] for frame in encoder.encode(event))]
    sent += [encoder.keep_alive(), *encoder.error(EngineBroken("gone"))]
    data = b"".join(frame.data for frame in sent)
    told = msgspec.json.decode(data)[-1] if request_ is ARRAY else msgspec.json.decode(data.splitlines()[-1])
    assert told["error"]["code"] == 502
    assert b"finishReason" not in data


def test_an_array_whose_end_was_held_back_is_whole_when_it_fails() -> None:
    encoder = PROTOCOL.encoder(ARRAY, reply_id="gen-1", created=0)
    opened = [*encoder.open()]
    encoder.encode(Finished("stop"))
    data = b"".join(frame.data for frame in [*opened, *encoder.error(EngineBroken("gone"))])
    assert [list(chunk) for chunk in msgspec.json.decode(data)] == [["error"]]


@pytest.mark.parametrize(("error", "code", "status", "words"), [
    (RequestError(400, "invalid_value", "bad", param="contents"), 400, "INVALID_ARGUMENT", "bad"),
    (RequestError(403, "budget_exhausted", "over"), 403, "PERMISSION_DENIED", "over"),
    (RequestError(401, "invalid_api_key", "no"), 401, "UNAUTHENTICATED", "no"),
    (EngineUnavailable("away"), 503, "UNAVAILABLE", "away"),
    (EngineBroken("gone"), 502, "UNAVAILABLE", "gone"),
    (EngineRefused.context_overflow(9, 8), 400, "INVALID_ARGUMENT",
     "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
])  # fmt: skip
def test_errors_are_google_s(error: RequestError, code: int, status: str, words: str) -> None:
    got = PROTOCOL.encode_error(error)
    told = msgspec.json.decode(got.body)["error"]
    assert (got.status, told["code"], told["status"], told["message"]) == (code, code, status, words)
    assert told["details"][0]["reason"] == error.code.upper()
    assert [detail["fieldViolations"][0]["field"] for detail in told["details"][1:]] == [error.param][
        : bool(error.param)
    ]


def test_models_are_listed_in_google_s_words() -> None:
    one = msgspec.json.decode(PROTOCOL.encode_models([ListedModel("a/b", 8), ListedModel("c")]))["models"]
    assert [(card["name"], card.get("inputTokenLimit")) for card in one] == [("models/a/b", 8), ("models/c", None)]
    assert msgspec.json.decode(PROTOCOL.encode_model(ListedModel("c")))["name"] == "models/c"


TEXTS = st.text(max_size=6)
DELTAS = st.lists(
    st.builds(Delta, text=TEXTS)
    | st.builds(Delta, reasoning=TEXTS)
    | st.builds(lambda at, text: Delta(tool_calls=(ToolCallDelta(at, f"c{at}", "f", text),)), st.integers(0, 2), TEXTS),
    max_size=12,
)


@settings(deadline=None)
@given(DELTAS, st.sampled_from([EVENTS, ARRAY]))
def test_a_stream_holds_exactly_what_was_sampled(deltas: list[Delta], request: ChatRequest) -> None:
    got = [part for chunk in chunks(frames([*deltas, Finished("stop")], request), request) for part in parts(chunk)]
    assert "".join(p.get("text", "") for p in got if not p.get("thought")) == "".join(d.text for d in deltas)
    assert "".join(p.get("text", "") for p in got if p.get("thought")) == "".join(d.reasoning for d in deltas)
    assert sum("functionCall" in part for part in got) == len({c.index for d in deltas for c in d.tool_calls})
