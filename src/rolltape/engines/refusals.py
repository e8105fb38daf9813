"""Answers of an OpenAI-shaped server that are not 200, and which of our errors each is. Pure.

A prompt that leaves no room is told with its numbers, because harnesses start a compaction on them. Servers word it in
several ways; so the numbers are read by patterns, which each engine brings.
"""

import re
from dataclasses import dataclass

from rolltape.engines.http import error_message, lenient_json
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError


class TooManyTokens(EngineRefused):
    """The prompt fits and what was to be sampled does not: `room` tokens are left. Nothing was sampled."""

    def __init__(self, message: str, room: int) -> None:
        super().__init__(400, "invalid_request", message, param="max_tokens")
        self.room = room


@dataclass(frozen=True, slots=True)
class Wording:
    """How the server `name` says what does not fit: patterns whose first group that matched is a number of tokens."""

    name: str
    context: re.Pattern[str]
    prompt: re.Pattern[str]

    def refusal(self, status: int, body: bytes, path: str) -> RequestError:
        """The error that an answer with `status` is."""
        message = error_message(body)
        if status in (401, 403):
            return EngineBroken(f"{self.name} wants another API key: {message}", hint="set the engine's api_key")
        if status in (429, 503):
            return EngineUnavailable(f"{self.name} takes no request now: {message}")
        if 400 <= status < 500:
            return self._refused(status, message, _param(body))
        return EngineBroken(f"{self.name} answered {path} with {status}: {message}")

    def _refused(self, status: int, message: str, param: str | None) -> EngineRefused:
        context, prompt = number(self.context, message), number(self.prompt, message)
        if context is None or prompt is None:
            return EngineRefused(status, "invalid_request", message, param=param)
        if prompt < context:
            return TooManyTokens(message, context - prompt)
        return EngineRefused.context_overflow(prompt, context)


def number(pattern: re.Pattern[str], message: str) -> int | None:
    """The number that `pattern` finds in `message`."""
    match = pattern.search(message)
    return int(next(group for group in match.groups() if group)) if match else None


def _param(body: bytes) -> str | None:
    try:
        fields = lenient_json(body)
        param = fields.get("error", fields)["param"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return param if isinstance(param, str) else None
