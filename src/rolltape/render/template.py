"""The fallback that works with any chat template: what it writes after the reply, found by writing it three times.

The template is only ever asked for whole prompts. Where the history is changed in the reply alone, the two prompts part
inside of the reply's turn; where it is changed in the first new message alone, they part inside of that message. If
exactly one stop token lies between those two places, it is the one that ends the reply, and all after it is what the
template writes for the news. A stop token is a boundary of tokenization, so that this tail is the same ids after any
other turn that ends in it.

Two things have to agree before the tail is taken: the recorded call ended in that stop token, and the prompt that the
template writes for the request as it is, ends in that same tail.
"""

from collections.abc import Awaitable, Callable

import numpy as np
from msgspec.structs import replace

from rolltape.chat import ChatRequest, Message
from rolltape.render.turns import CannotContinue, Recorded, Turn
from rolltape.tokens import IntArray, common_prefix, token_ids

Render = Callable[[ChatRequest], Awaitable[IntArray]]
"""The prompt ids of a request, generation prompt included."""

MARKS = ("Q", "7")


class TemplateExtender:
    """See `Extender`. `render` is the engine's own."""

    name = "template"

    def __init__(self, render: Render) -> None:
        self._render = render

    async def extend(self, recorded: Recorded, request: ChatRequest, turn: Turn) -> IntArray:
        whole = await self._render(request)
        if common_prefix(whole, recorded.sequence) == len(recorded.sequence):
            return whole
        tail = await self._tail(recorded, request, turn)
        if not len(tail) or not np.array_equal(whole[-len(tail) :], tail):
            raise CannotContinue("the template writes the new messages differently after another history")
        return token_ids(np.concatenate([recorded.sequence, tail]))

    async def _tail(self, recorded: Recorded, request: ChatRequest, turn: Turn) -> IntArray:
        bare = _without_reasoning(request)
        written = await self._render(bare)
        other_reply = await self._render(_changed(bare, turn.at))
        other_news = await self._render(_changed(bare, turn.at + 1))
        stops = np.flatnonzero(written == recorded.stop)
        in_reply, in_news = common_prefix(written, other_reply), common_prefix(written, other_news)
        between = stops[(stops >= in_reply) & (stops < in_news)]
        if len(between) != 1:
            reason = f"{len(between)} tokens like the one that ended the reply lie between it and the next message"
            raise CannotContinue(reason)
        return written[int(between[0]) + 1 :]


def _without_reasoning(request: ChatRequest) -> ChatRequest:
    """Templates strip it from some turns only. The news are written alike either way, which is checked."""
    messages = tuple(replace(one, reasoning=None) if one.reasoning is not None else one for one in request.messages)
    return replace(request, messages=messages)


def _changed(request: ChatRequest, at: int) -> ChatRequest:
    """`request` with other words at the beginning of message `at`."""
    message: Message = request.messages[at]
    text = message.text()
    mark = next(mark for mark in MARKS if not text.lstrip().startswith(mark))
    other = replace(message, content=mark + text)
    return replace(request, messages=(*request.messages[:at], other, *request.messages[at + 1 :]))
