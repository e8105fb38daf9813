"""vLLM's answers that are not 200, and which of our errors each is. Pure.

It words a prompt that leaves no room in several ways, by version and by what was too long; so the numbers are read from
what all of these have in common.
"""

import re

from rolltape.engines.refusals import Wording, number
from rolltape.errors import EngineRefused, RequestError

WORDING = Wording(
    "vLLM",
    context=re.compile(r"maximum context length (?:is |\()(\d+)|max_model_len=(\d+)"),
    prompt=re.compile(
        r"contains (?:at least )?(\d+) input tokens|(\d+) in the (?:messages|prompt)|request has (\d+) input tokens"
        r"|resulted in (\d+) tokens|Input length \((\d+)\)"
    ),
)
TOO_MANY_CHARACTERS = re.compile(r"your prompt contains \d+ characters")
NO_ROOM = re.compile(r"max_tokens must be at least 1, got (?:0|-\d+)")


def refusal(status: int, body: bytes, path: str) -> RequestError:
    """The error that an answer with `status` is."""
    error = WORDING.refusal(status, body, path)
    context = number(WORDING.context, error.message)
    if isinstance(error, EngineRefused) and context is not None and TOO_MANY_CHARACTERS.search(error.message):
        return EngineRefused.context_overflow(context + 1, context)
    return error


def leaves_no_room(error: EngineRefused, context: int | None) -> EngineRefused | None:
    """The overflow that `error` is in disguise: for a prompt of exactly `context` tokens vLLM says that the
    `max_tokens` it clamped itself is none. None if it is no such thing."""
    if context is not None and NO_ROOM.search(error.message):
        return EngineRefused.context_overflow(context, context)
    return None
