"""Going on from recorded tokens: the prompt of a call as the recorded sequence of the call before and the new messages.

A chat template writes the whole history anew each time, and what it writes of an earlier turn is often not what was
sampled: thinking is stripped, arguments are serialised again. Here the recorded ids stay as they are, and only what
came after them is written. That is only done where it can be proved exact; each step that cannot raises
`CannotContinue` with the reason, and the call is observed as usual.

    request --turns.split--> opening, reply, news --turns.Conversations--> the recorded call --Extender--> prompt ids
"""

from typing import Protocol

from rolltape.chat import ChatRequest
from rolltape.render.template import TemplateExtender
from rolltape.render.turns import CannotContinue, Conversations, Recorded, Turn, split
from rolltape.tokens import IntArray

__all__ = ["CannotContinue", "Conversations", "Extender", "Recorded", "TemplateExtender", "Turn", "split"]


class Extender(Protocol):
    """Writes the prompt of a request whose history goes on from what a recorded call sampled, recorded ids first."""

    name: str

    async def extend(self, recorded: Recorded, request: ChatRequest, turn: Turn) -> IntArray:
        """`recorded.sequence` and what follows it. Raises `CannotContinue` where that cannot be proved."""
        ...
