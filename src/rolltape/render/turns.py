"""Which recorded call a request goes on from. Pure.

A request is taken apart at its last assistant turn: what came before it (the *opening*), the turn itself, and the news
after it. A recorded call is the one it goes on from if that call was asked the same opening and gave the same reply.

The same means: every message of the system, the user and the tools is the same text; every assistant turn has the same
tool calls by id, name and arguments (as JSON values: harnesses serialise them again) and the same text but for white
space at its ends. Reasoning may be missing: harnesses drop it, and that it is missing is what breaks a chain. A text is
never looked up by itself: without its opening, one "Done." is like another.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rolltape.chat import ChatRequest, Json, Message
from rolltape.media import media_parts
from rolltape.record import CONTINUATION, Outcome, TokenEntry
from rolltape.tokens import IntArray

CLEAN_ENDS = ("stop", "tool_calls")


class CannotContinue(Exception):
    """The recorded sequence cannot be shown to be the beginning of this prompt. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request at its last assistant turn, which is message number `at`."""

    at: int
    opening: bytes
    """Digest of the tools and of the messages before the turn."""
    reply: bytes
    """Digest of the turn."""
    news: tuple[Message, ...]
    """What came after it: never empty, and no assistant turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What a call was asked and what it sampled."""

    model_call_id: str
    opening: bytes
    reply: bytes
    sequence: IntArray
    """(P+G,) its prompt and generation, the stop token last."""
    prompt_tokens: int
    rendered: bool = True
    """The engine rendered the prompt from messages; False: it was gone on from recorded ids itself."""

    @property
    def stop(self) -> int:
        return int(self.sequence[-1])


def split(request: ChatRequest) -> Turn:
    """Raises `CannotContinue` for a request that goes on from nothing, or shows what ids alone cannot carry."""
    if request.prompt is not None:
        raise CannotContinue("a raw prompt is no conversation")
    at = max((index for index, one in enumerate(request.messages) if one.role == "assistant"), default=None)
    if at is None:
        raise CannotContinue("the conversation begins here")
    if at == len(request.messages) - 1:
        raise CannotContinue("the history ends in an assistant turn, which asks for more of it")
    if next(iter(media_parts(request)), None) is not None:
        raise CannotContinue("the history shows images")
    return Turn(at, opening(request, at), _key(request.messages[at]), request.messages[at + 1 :])


def opening(request: ChatRequest, at: int | None = None) -> bytes:
    """Digest of what a turn at `at` answers; None = of the whole request."""
    said = hashlib.sha256(
        msgspec.json.encode([request.tools, request.extra.get("chat_template_kwargs")], order="sorted")
    )
    for message in request.messages[:at]:
        said.update(_key(message))
    return said.digest()


def recorded(request: ChatRequest, entry: TokenEntry, reply: Message, stop_sequence: str | None) -> Recorded | None:
    """What later requests may go on from; None where the ids are in doubt or do not end in a stop token of the model's
    own: then nothing says where the template would go on."""
    sampled = len(entry.generation_token_ids)
    ended = entry.outcome is Outcome.COMPLETED and entry.finish_reason in CLEAN_ENDS and stop_sequence is None
    if request.prompt is not None or not (ended and sampled and entry.ids_exact):
        return None
    return Recorded(
        entry.model_call_id,
        opening(request),
        _key(reply),
        entry.sequence,
        prompt_tokens=len(entry.prompt_token_ids),
        rendered=not str(entry.extra.get(CONTINUATION, "")).startswith("continued"),
    )


def _key(message: Message) -> bytes:
    if message.role == "assistant":
        calls = [[call.id, call.name, _value(call.arguments)] for call in message.tool_calls]
        body: list[object] = ["assistant", message.text().strip(), calls]
    else:
        role = "system" if message.role == "developer" else message.role
        body = [role, _parts(message), message.tool_call_id]
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).digest()


def _parts(message: Message) -> object:
    """The text where there is nothing else, so that one text in two forms is one."""
    if not isinstance(message.content, tuple) or all(part.get("type") == "text" for part in message.content):
        return message.text()
    shown: Sequence[Json] = message.content
    return list(shown)


def _value(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


class Conversations:
    """The recorded calls that later ones may go on from, the newest of each rollout. In memory: a worker that does not
    know a call observes the next one. `most` ids are kept in all; a longer call takes more of that."""

    def __init__(self, most: int = 2**28, each: int = 16) -> None:
        self._most, self._each, self._held = most, each, 0
        self._rollouts: OrderedDict[str, OrderedDict[tuple[bytes, bytes], list[Recorded]]] = OrderedDict()

    def add(self, rollout_id: str, call: Recorded) -> None:
        calls = self._rollouts.setdefault(rollout_id, OrderedDict())
        self._rollouts.move_to_end(rollout_id)
        calls.setdefault((call.opening, call.reply), []).append(call)
        self._held += len(call.sequence)
        while len(calls) > self._each:
            self._forget(calls.popitem(last=False)[1])
        while self._held > self._most and len(self._rollouts) > 1:
            for same in self._rollouts.popitem(last=False)[1].values():
                self._forget(same)

    def _forget(self, calls: Sequence[Recorded]) -> None:
        self._held -= sum(len(call.sequence) for call in calls)

    def find(self, rollout_id: str, turn: Turn) -> Recorded:
        """The one call that was asked the turn's opening and gave its reply. Raises `CannotContinue`."""
        calls = self._rollouts.get(rollout_id)
        same = calls.get((turn.opening, turn.reply)) if calls is not None else None
        if not same:
            raise CannotContinue("no recorded call was asked this history and gave this reply")
        first = same[0]
        if any(call.sequence.tobytes() != first.sequence.tobytes() for call in same[1:]):
            raise CannotContinue(f"{len(same)} recorded calls gave this reply in different tokens")
        return first
