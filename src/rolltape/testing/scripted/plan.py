"""One call's plan: what the engine will do, as a list of events, waits and errors. Pure.

The reply is known before it is sampled, so the whole call is laid out first and a fault is a change of the plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from msgspec.structs import replace

from rolltape.chat import Delta, EngineEvent, Finished, FinishReason, Started, ToolCallDelta
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError
from rolltape.testing.scripted.script import Fault, Step
from rolltape.testing.scripted.template import assistant_ids
from rolltape.testing.scripted.tokenizer import IM_END, log_prob, token_text
from rolltape.testing.scripted.visible import Piece, Visible
from rolltape.tokens import IntArray


@dataclass(frozen=True, slots=True)
class Wait:
    """`seconds` of silence; None = for ever."""

    seconds: float | None


Action: TypeAlias = EngineEvent | RequestError | Wait
NO_END_TOKEN = ("length", "content_filter")
CUT = (Fault.STALL, Fault.DIE_MID_STREAM, Fault.ENDS_UNFINISHED)


def plan(
    prompt: IntArray,
    sampling: Mapping[str, Any],
    step: Step,
    *,
    context_length: int,
    chunk: int,
    version: str | None,
) -> list[Action]:
    """The whole call. `chunk` is the number of tokens a delta."""
    room = context_length - len(prompt)
    if room < 1:
        return [EngineRefused.context_overflow(len(prompt), context_length)]
    applied = {**sampling, "max_tokens": min(sampling.get("max_tokens") or room, room)}
    pieces, finish, stop = _sampled(step, applied["max_tokens"], applied.get("stop") or [])
    started = Started(prompt, applied, "raw", version)
    deltas = [_delta(pieces[at : at + chunk], len(prompt) + at) for at in range(0, len(pieces), chunk)]
    finished = Finished(finish, completion_tokens=len(pieces), policy_version=version, stop_sequence=stop)
    actions: list[Action] = [started, *deltas, finished]
    return actions if step.fault is None else FAULTS[step.fault](actions, step)


def _sampled(step: Step, max_tokens: int, stops: Sequence[str]) -> tuple[list[Piece], FinishReason, str | None]:
    wanted: FinishReason = step.finish_reason or ("tool_calls" if step.tool_calls else "stop")
    ids = assistant_ids(step.reasoning, step.text, step.tool_calls)
    if wanted not in NO_END_TOKEN:
        ids.append(IM_END)
    finish: FinishReason = wanted if len(ids) <= max_tokens else "length"
    visible = Visible(careless=step.fault is Fault.SPLIT_UTF8)
    pieces = [visible.feed(token) for token in ids[:max_tokens]]
    if step.fault in CUT:
        return pieces[: step.after], finish, None
    stopped = _stopped(pieces, stops)
    return (pieces, finish, None) if stopped is None else (stopped[0], "stop", stopped[1])


def _stopped(pieces: list[Piece], stops: Sequence[str]) -> tuple[list[Piece], str] | None:
    """`pieces` up to the first stop string, which stays in the ids and not in the text, and that string; or None."""
    text = "".join(piece.text for piece in pieces)
    found = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    if not found:
        return None
    end, start = min(found)
    shown = list(accumulate(len(piece.text) for piece in pieces))
    last = next(at for at, length in enumerate(shown) if length >= end)
    kept = [
        Piece(piece.token, piece.text[: max(0, start - (length - len(piece.text)))], piece.reasoning, piece.tool_call)
        for piece, length in zip(pieces[: last + 1], shown, strict=False)
    ]
    return kept, text[start:end]


def _delta(pieces: Sequence[Piece], position: int) -> Delta:
    ids = tuple(piece.token for piece in pieces)
    return Delta(
        token_ids=ids,
        log_probs=tuple(log_prob(token, position + at) for at, token in enumerate(ids)),
        text="".join(piece.text for piece in pieces),
        reasoning="".join(piece.reasoning for piece in pieces),
        tool_calls=_joined([piece.tool_call for piece in pieces if piece.tool_call is not None]),
        token_texts=tuple(map(token_text, ids)),
    )


def _joined(calls: Sequence[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Neighbouring pieces of one call as one."""
    joined: list[ToolCallDelta] = []
    for call in calls:
        if joined and call.id is None and joined[-1].index == call.index:
            last = joined.pop()
            call = ToolCallDelta(last.index, last.id, last.name, last.arguments + call.arguments)
        joined.append(call)
    return tuple(joined)


Change: TypeAlias = Callable[[list[Action], Step], list[Action]]


def _instead(make: Callable[[], Action]) -> Change:
    return lambda actions, step: [make()]


def _error_500() -> EngineBroken:
    error = EngineBroken("The scripted engine failed on purpose.")
    error.status = 500
    return error


def _cut(*then: Callable[[], Action]) -> Change:
    """No end, but something else. `_sampled` has already cut the tokens."""
    return lambda actions, step: [*actions[:-1], *(make() for make in then)]


def _each_delta(change: Callable[[Delta], Delta]) -> Change:
    return lambda actions, step: [change(a) if isinstance(a, Delta) else a for a in actions]


def _last_delta(change: Callable[[Delta], Delta]) -> Change:
    def changed(actions: list[Action], step: Step) -> list[Action]:
        last = max((at for at, action in enumerate(actions) if isinstance(action, Delta)), default=None)
        return [change(a) if at == last and isinstance(a, Delta) else a for at, a in enumerate(actions)]

    return changed


def _first_delta(change: Callable[[Delta], Delta]) -> Change:
    def changed(actions: list[Action], step: Step) -> list[Action]:
        first = next((at for at, action in enumerate(actions) if isinstance(action, Delta)), None)
        return [change(a) if at == first and isinstance(a, Delta) else a for at, a in enumerate(actions)]

    return changed


def _nan_in(delta: Delta) -> Delta:
    at = min(1, len(delta.log_probs) - 1)
    return replace(delta, log_probs=tuple(float("nan") if i == at else v for i, v in enumerate(delta.log_probs)))


def _bad_id_in(delta: Delta) -> Delta:
    return replace(delta, token_ids=(*delta.token_ids[:-1], -1))


def _one_log_prob_less(delta: Delta) -> Delta:
    return replace(delta, log_probs=delta.log_probs[:-1])


def _prompt_ids_missing(actions: list[Action], step: Step) -> list[Action]:
    return [replace(a, prompt_token_ids=None) if isinstance(a, Started) else a for a in actions]


def _count_mismatch(actions: list[Action], step: Step) -> list[Action]:
    return [
        replace(a, completion_tokens=(a.completion_tokens or 0) + 3) if isinstance(a, Finished) else a for a in actions
    ]


def _held_back(actions: list[Action], step: Step) -> list[Action]:
    deltas = [a for a in actions if isinstance(a, Delta)]
    calls = _joined([call for delta in deltas for call in delta.tool_calls])
    silent = [replace(delta, text="", reasoning="", tool_calls=()) for delta in deltas]
    text, reasoning = "".join(d.text for d in deltas), "".join(d.reasoning for d in deltas)
    told = [replace(delta, text=text, reasoning=reasoning, tool_calls=calls) for delta in silent[-1:]]
    return [actions[0], *silent[:-1], *told, actions[-1]]


def _slow(actions: list[Action], step: Step) -> list[Action]:
    slowed: list[Action] = []
    for action in actions:
        slowed += [Wait(0.1), action] if isinstance(action, Delta) else [action]
    return slowed


FAULTS: dict[Fault, Change] = {
    Fault.REFUSE_400: _instead(lambda: EngineRefused(400, "refused", "The scripted engine refuses on purpose.")),
    Fault.OVERFLOW: _instead(lambda: EngineRefused.context_overflow(2048, 1024)),
    Fault.UNAVAILABLE: _instead(lambda: EngineUnavailable("The scripted engine is away on purpose.")),
    Fault.ERROR_500: _instead(_error_500),
    Fault.HANG: _instead(lambda: Wait(None)),
    Fault.STALL: _cut(lambda: Wait(None)),
    Fault.SLOW: _slow,
    Fault.DIE_MID_STREAM: _cut(lambda: EngineBroken("The scripted engine died on purpose.")),
    Fault.ENDS_UNFINISHED: _cut(),
    Fault.NO_START: lambda actions, step: actions[1:],
    Fault.IDS_MISSING: _each_delta(lambda delta: replace(delta, token_ids=(), log_probs=(), token_texts=())),
    Fault.PROMPT_IDS_MISSING: _prompt_ids_missing,
    Fault.LOG_PROBS_MISSING: _each_delta(lambda delta: replace(delta, log_probs=())),
    Fault.LOG_PROBS_SHORT: _last_delta(_one_log_prob_less),
    Fault.LOG_PROBS_NAN: _first_delta(_nan_in),
    Fault.COUNT_MISMATCH: _count_mismatch,
    Fault.BAD_IDS: _last_delta(_bad_id_in),
    Fault.HELD_BACK_TEXT: _held_back,
    Fault.SPLIT_UTF8: lambda actions, step: actions,
}
