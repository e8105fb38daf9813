"""Answers that are not 200, and which of our errors each is. Pure.

A prompt that leaves no room is told with its numbers, because harnesses start a compaction on them. vLLM words it in
several ways, by version and by what was too long; so they are read from what all of these have in common.
"""

import re

from rolltape.engines.http import error_message, lenient_json
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError

CONTEXT = re.compile(r"maximum context length (?:is |\()(\d+)|max_model_len=(\d+)")
PROMPT = re.compile(
    r"contains (?:at least )?(\d+) input tokens|(\d+) in the (?:messages|prompt)|request has (\d+) input tokens"
    r"|resulted in (\d+) tokens|Input length \((\d+)\)"
)
TOO_MANY_CHARACTERS = re.compile(r"your prompt contains \d+ characters")
NO_ROOM = re.compile(r"max_tokens must be at least 1, got (?:0|-\d+)")


class TooManyTokens(EngineRefused):
    """The prompt fits and what was to be sampled does not: `room` tokens are left. Nothing was sampled."""

    def __init__(self, message: str, room: int) -> None:
        super().__init__(400, "invalid_request", message, param="max_tokens")
        self.room = room


def refusal(status: int, body: bytes, path: str) -> RequestError:
    """The error that an answer with `status` is."""
    message = error_message(body)
    if status in (401, 403):
        return EngineBroken(f"vLLM wants another API key: {message}", hint="set the engine's api_key")
    if status in (429, 503):
        return EngineUnavailable(f"vLLM takes no request now: {message}")
    if 400 <= status < 500:
        return _refused(status, message, _param(body))
    return EngineBroken(f"vLLM answered {path} with {status}: {message}")


def _refused(status: int, message: str, param: str | None) -> EngineRefused:
    context, prompt = _number(CONTEXT, message), _number(PROMPT, message)
    if context is not None and prompt is not None:
        if prompt < context:
            return TooManyTokens(message, context - prompt)
        return EngineRefused.context_overflow(prompt, context)
    if context is not None and TOO_MANY_CHARACTERS.search(message):
        return EngineRefused.context_overflow(context + 1, context)
    return EngineRefused(status, "invalid_request", message, param=param)


def leaves_no_room(error: EngineRefused, context: int | None) -> EngineRefused | None:
    """The overflow that `error` is in disguise: for a prompt of exactly `context` tokens vLLM says that the
    `max_tokens` it clamped itself is none. None if it is no such thing."""
    if context is not None and NO_ROOM.search(error.message):
        return EngineRefused.context_overflow(context, context)
    return None


def _number(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    return int(next(group for group in match.groups() if group)) if match else None


def _param(body: bytes) -> str | None:
    try:
        param = lenient_json(body)["error"]["param"]
    except (ValueError, KeyError, TypeError):
        return None
    return param if isinstance(param, str) else None
