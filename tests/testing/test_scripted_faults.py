"""Faults on demand: each does what its name says, and no more."""

import asyncio
import math
import time
from pathlib import Path

import pytest

from rolltape.chat import Delta, EngineEvent, Finished, Started
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError
from rolltape.testing.scripted import Fault, ScriptedEngine, Step, encode
from rolltape.testing.scripted.tokenizer import IM_END

from .test_scripted import ask, calls, deltas, finish, ids, text

WHOLE = [*encode("Grüße 北"), IM_END]


async def told(fault: Fault | None, *, chunk: int = 3, after: int = 2) -> tuple[list[EngineEvent], RequestError | None]:
    """What the engine tells of the reply "Grüße 北", and the error that ended it."""
    served = ScriptedEngine(script=[Step("Grüße 北", fault=fault, after=after)], chunk=chunk)
    events: list[EngineEvent] = []
    try:
        async for event in served.generate(ask(), {}):
            events.append(event)
    except RequestError as error:
        assert (served.failed, served.alive) == (1, 0)
        return events, error
    assert (served.finished, served.alive) == (1, 0)
    return events, None


def log_probs(events: list[EngineEvent]) -> list[float | None]:
    return [value for delta in deltas(events) for value in delta.log_probs]


def test_every_fault_is_tested_here() -> None:
    source = Path(__file__).read_text()
    assert [fault for fault in Fault if f"Fault.{fault.name}" not in source] == []


@pytest.mark.parametrize(
    ("fault", "kind", "status", "code"),
    [
        (Fault.REFUSE_400, EngineRefused, 400, "refused"),
        (Fault.OVERFLOW, EngineRefused, 400, "context_length_exceeded"),
        (Fault.UNAVAILABLE, EngineUnavailable, 503, "engine_unavailable"),
        (Fault.ERROR_500, EngineBroken, 500, "engine_broken"),
    ],
)
async def test_a_refusal_comes_before_any_event(fault: Fault, kind: type, status: int, code: str) -> None:
    events, error = await told(fault)
    assert events == []
    assert isinstance(error, kind)
    assert error is not None
    assert (error.status, error.code) == (status, code)


@pytest.mark.parametrize(("fault", "given"), [(Fault.HANG, 0), (Fault.STALL, 2)])
async def test_a_silent_engine_stays_silent_until_it_is_closed(fault: Fault, given: int) -> None:
    served = ScriptedEngine(script=[Step("Grüße 北", fault=fault)], chunk=1)
    events: list[EngineEvent] = []

    async def listen() -> None:
        async for event in served.generate(ask(), {}):
            events.append(event)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(listen(), 0.1)
    assert ids(events) == WHOLE[:given]
    assert (served.alive, served.aborted) == (0, 1)


async def test_a_slow_engine_tells_all_in_its_own_time() -> None:
    start = time.monotonic()
    events, _ = await told(Fault.SLOW, chunk=6)
    assert ids(events) == WHOLE
    assert time.monotonic() - start > 0.15


@pytest.mark.parametrize("after", [0, 1, 3, 4, 99])
async def test_a_stream_that_dies_gives_as_many_tokens_as_it_was_told(after: int) -> None:
    events, error = await told(Fault.DIE_MID_STREAM, after=after)
    assert isinstance(error, EngineBroken)
    assert isinstance(events[0], Started)
    assert ids(events) == WHOLE[:after]
    assert len(log_probs(events)) == len(ids(events))
    assert text(events) == bytes(ids(events)[: len(WHOLE) - 1]).decode(errors="ignore")


async def test_a_stream_may_end_without_a_word() -> None:
    events, error = await told(Fault.ENDS_UNFINISHED)
    assert error is None
    assert ids(events) == WHOLE[:2]
    assert not any(isinstance(event, Finished) for event in events)


async def test_a_stream_may_begin_without_its_start() -> None:
    events, _ = await told(Fault.NO_START)
    assert isinstance(events[0], Delta)
    assert ids(events) == WHOLE


async def test_ids_may_be_missing_under_a_whole_text() -> None:
    events, _ = await told(Fault.IDS_MISSING)
    assert (ids(events), log_probs(events), text(events)) == ([], [], "Grüße 北")
    assert finish(events).completion_tokens == len(WHOLE)


async def test_prompt_ids_may_be_missing() -> None:
    events, _ = await told(Fault.PROMPT_IDS_MISSING)
    assert isinstance(events[0], Started)
    assert events[0].prompt_token_ids is None
    assert ids(events) == WHOLE


async def test_log_probs_may_be_missing_short_or_no_numbers() -> None:
    assert log_probs((await told(Fault.LOG_PROBS_MISSING))[0]) == []
    assert len(log_probs((await told(Fault.LOG_PROBS_SHORT))[0])) == len(WHOLE) - 1
    values = log_probs((await told(Fault.LOG_PROBS_NAN))[0])
    assert [at for at, value in enumerate(values) if value is None or math.isnan(value)] == [1]
    assert len(log_probs((await told(Fault.LOG_PROBS_NAN, chunk=1))[0])) == len(WHOLE)


async def test_the_engine_may_count_more_than_it_gave() -> None:
    events, _ = await told(Fault.COUNT_MISMATCH)
    assert finish(events).completion_tokens == len(ids(events)) + 3 == len(WHOLE) + 3


async def test_an_id_may_be_none() -> None:
    events, _ = await told(Fault.BAD_IDS)
    assert ids(events) == [*WHOLE[:-1], -1]


async def test_text_may_be_held_back_while_ids_come() -> None:
    events, _ = await told(Fault.HELD_BACK_TEXT, chunk=1)
    assert ids(events) == WHOLE
    assert [delta.text for delta in deltas(events)] == [""] * (len(WHOLE) - 1) + ["Grüße 北"]
    step = Step("a", reasoning="b", tool_calls=(("f", "{}"),), fault=Fault.HELD_BACK_TEXT)
    served = ScriptedEngine(script=[step], chunk=1)
    called = [event async for event in served.generate(ask(), {})]
    assert calls(called) == [("f", "{}")]
    assert deltas(called)[-1].reasoning == "b"


async def test_characters_may_be_broken_in_the_text_while_the_ids_are_right() -> None:
    events, _ = await told(Fault.SPLIT_UTF8)
    assert ids(events) == WHOLE
    assert text(events) == "Gr\ufffd\ufffd\ufffd\ufffde \ufffd\ufffd\ufffd"
