"""Chunks of a streamed `/completion` to events. Pure.

The server sends one chunk a token, except that a token which ends inside a UTF-8 character is not sent at all: neither
its id nor its log-prob. Each chunk carries the count of tokens so far (`tokens_predicted`), so a hidden token is seen
as a jump, and everything that is sent is placed by that count, never by its order.

Hidden ids come back only where they are certain: the next chunk holds the bytes of the whole character, and when the
vocabulary offers exactly one way to spell them with so many tokens, that is what was sampled. Otherwise the ids stay
missing and the call is marked. A hidden token's log-prob is always None.

Stop strings and the token limit are applied here, and the server is asked for a few tokens more than the limit: it
then sends the chunk that spells out a character which the limit cuts, and it would drop text that it holds back for a
stop string when the model ends first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltape.chat import Delta, EngineEvent, Finished, FinishReason, Json
from rolltape.engines.llamacpp.tools import Found, ToolCallParser
from rolltape.errors import EngineBroken

LOOK_AHEAD = 4
"""Tokens asked for beyond the limit: a character has at most four bytes."""


_LONGEST_CHARACTER = 4
"""Bytes; no more tokens than that are hidden in one."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`pieces`: the bytes that each id adds to the text. `control`: the texts of ids that add none."""

    pieces: Mapping[int, bytes]
    control: Mapping[str, int] = field(default_factory=dict)
    _ids: dict[bytes, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for token_id, piece in self.pieces.items():
            self._ids.setdefault(piece, []).append(token_id)

    def only_spelling(self, data: bytes, count: int) -> tuple[int, ...] | None:
        """The `count` ids whose bytes are `data`, if there is exactly one such sequence; else None."""
        spellings = self._spellings(data, count)
        first = next(spellings, None)
        return first if next(spellings, None) is None else None

    def _spellings(self, data: bytes, count: int) -> Iterator[tuple[int, ...]]:
        if count == 0:
            if not data:
                yield ()
            return
        for length in range(len(data) + 1):
            for token_id in self._ids.get(data[:length], ()):
                for rest in self._spellings(data[length:], count - 1):
                    yield (token_id, *rest)

    def text(self, token_id: int) -> str:
        """The id's own text, broken characters replaced; a control token's name."""
        piece = self.pieces.get(token_id, b"")
        if piece:
            return piece.decode("utf-8", "replace")
        return next((text for text, known in self.control.items() if known == token_id), "")


class StopText:
    """Passes text until a stop string is complete, holding back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stopped = False
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> str:
        """Text that is certainly visible."""
        text = self._held + text
        at = min((i for i in (text.find(stop) for stop in self._stops) if i >= 0), default=-1)
        if at >= 0:
            self.stopped, self._held = True, ""
            return text[:at]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def close(self) -> str:
        """What was held back; the generation ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(slots=True)
class CompletionReader:
    """Turns one call's chunks into events. `done` after `Finished`: whatever the server still sends is not part."""

    vocabulary: Vocabulary
    max_tokens: int
    stop: StopText
    tools: ToolCallParser | None = None
    done: bool = False
    _count: int = 0
    """Tokens accounted for, hidden ones included."""
    _lost: int = 0

    def feed(self, chunk: Json) -> list[EngineEvent]:
        """Events of one chunk. Raises `EngineBroken` on what is no chunk of a completion."""
        try:
            return self._feed(chunk)
        except (TypeError, AttributeError, ValueError, LookupError) as error:
            raise EngineBroken(f"llama.cpp sent a chunk of another shape ({error}): {str(chunk)[:200]}") from error

    def _feed(self, chunk: Json) -> list[EngineEvent]:
        if "error" in chunk:
            raise EngineBroken(f"llama.cpp failed in mid-stream: {_message(chunk)}")
        total = chunk.get("tokens_predicted")
        if not isinstance(total, int) or total < self._count:
            raise EngineBroken(f"llama.cpp sent a chunk without a sane token count: {str(chunk)[:200]}")
        if chunk.get("stop") is True:
            return self._end(chunk, total)
        if self._count >= self.max_tokens:
            return self._finish("length", chunk=None)
        delta = self._delta(chunk, total)
        if self.stop.stopped:
            return [delta, *self._finish("stop", chunk=None)]
        if total > self.max_tokens:  # the limit falls inside a character
            return [delta, *self._finish("length", chunk=None)]
        return [delta]

    def _delta(self, chunk: Json, total: int) -> Delta:
        ids, log_probs = self._tokens(chunk, total)
        room = self.max_tokens - self._count
        self._count = min(total, self.max_tokens)
        found = self._visible(chunk.get("content", "")) if total <= self.max_tokens else Found()
        ids, log_probs = ids[:room], log_probs[:room]
        texts = tuple(self.vocabulary.text(token_id) for token_id in ids)
        return Delta(ids, log_probs, found.text, tool_calls=found.calls, token_texts=texts)

    def _tokens(self, chunk: Json, total: int) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
        """Ids and log-probs of the positions from `_count` to `total`: the hidden ones, then the chunk's own."""
        ids = chunk.get("tokens")
        if not isinstance(ids, list) or not all(type(i) is int for i in ids) or len(ids) > total - self._count:
            raise EngineBroken(f"llama.cpp sent a chunk without sane token ids: {str(chunk)[:200]}")
        entries = chunk.get("completion_probabilities")
        entries = entries if isinstance(entries, list) else []
        known = tuple(ids)
        own = tuple(_log_prob(entries, known, at) for at in range(len(known)))
        hidden = total - self._count - len(known)
        if not hidden:
            return known, own
        spelled = self._spelled(entries, known, hidden)
        if spelled is None:
            self._lost += hidden
            return known, own
        return spelled + known, (None,) * hidden + own

    def _spelled(self, entries: list[Any], known: tuple[int, ...], hidden: int) -> tuple[int, ...] | None:
        if hidden > _LONGEST_CHARACTER or len(known) != 1 or len(entries) != 1 or entries[0].get("id") != known[0]:
            return None
        told = entries[0].get("bytes")
        if not isinstance(told, list) or not all(type(byte) is int and 0 <= byte < 256 for byte in told):
            return None
        data = bytes(told)
        last = self.vocabulary.pieces.get(known[0])
        if last is None or not data.endswith(last):
            return None
        return self.vocabulary.only_spelling(data[: len(data) - len(last)], hidden)

    def _visible(self, text: str) -> Found:
        text = self.stop.feed(text)
        return self.tools.feed(text) if self.tools else Found(text)

    def _end(self, chunk: Json, total: int) -> list[EngineEvent]:
        lost = max(min(total, self.max_tokens) - self._count, 0)
        self._lost += lost
        found = self._visible(chunk.get("content") or "")
        reason: FinishReason = "length" if chunk.get("stop_type") == "limit" or total > self.max_tokens else "stop"
        self._count += lost
        shown: list[EngineEvent] = [Delta(text=found.text, tool_calls=found.calls)] if found != Found() else []
        return shown + self._finish(reason, chunk)

    def _finish(self, reason: FinishReason, chunk: Json | None) -> list[EngineEvent]:
        self.done = True
        rest = Found(self.stop.close())
        if self.tools:
            fed, closed = self.tools.feed(rest.text), self.tools.close()
            rest = Found(fed.text + closed.text, fed.calls + closed.calls)
            if self.tools.count and reason == "stop":
                reason = "tool_calls"
        shown: list[EngineEvent] = [Delta(text=rest.text, tool_calls=rest.calls)] if rest != Found() else []
        fault = (f"generation_ids_missing: {self._lost} tokens that end inside a character",) if self._lost else ()
        cached = (chunk or {}).get("timings", {}).get("cache_n")
        return [*shown, Finished(reason, self._count, cached if isinstance(cached, int) else None, faults=fault)]


def _log_prob(entries: list[Any], ids: tuple[int, ...], at: int) -> float | None:
    """The log-prob of `ids[at]`, only where entries and ids match one by one."""
    if len(entries) != len(ids) or not isinstance(entries[at], dict) or entries[at].get("id") != ids[at]:
        return None
    value = entries[at].get("logprob")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _message(chunk: Json) -> str:
    error = chunk["error"]
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
