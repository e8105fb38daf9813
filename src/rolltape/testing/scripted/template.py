"""The scripted engine's chat template: ChatML with thinking and tool calls.

It is append-only: an assistant turn that is echoed verbatim renders to exactly the ids that were sampled, so the
rendering of a longer history starts with the prompt and generation of the call before. Verbatim means the same
reasoning, content, tool names and argument strings; a harness that drops or rewrites one of them breaks the prefix
here just as it does with a real model.
"""

import msgspec

from rolltape.chat import ChatRequest, Json, Message
from rolltape.errors import EngineRefused
from rolltape.testing.scripted.tokenizer import (
    END_THINK,
    END_TOOL_CALL,
    IM_END,
    IM_START,
    THINK,
    TOOL_CALL,
    encode,
)

NEWLINE = encode("\n")
GENERATION_PROMPT = (IM_START, *encode("assistant\n"))


def render(request: ChatRequest) -> list[int]:
    """The prompt ids of `request`, generation prompt included. Raises `EngineRefused` for content that is no text."""
    ids = _tools(request.tools) if request.tools else []
    for index, message in enumerate(request.messages):
        ids += _turn(message.role, _body(message, f"messages[{index}].content"))
    return [*ids, *GENERATION_PROMPT]


def assistant_body(reasoning: str, text: str, tool_calls: tuple[tuple[str, str], ...]) -> list[int]:
    """What the model samples for such a turn, end token excluded. `tool_calls` are (name, arguments)."""
    ids = [THINK, *encode(reasoning), END_THINK] if reasoning else []
    ids += encode(text)
    for name, arguments in tool_calls:
        ids += [TOOL_CALL, *encode(f"{name}\n{arguments}"), END_TOOL_CALL]
    return ids


def _tools(tools: tuple[Json, ...]) -> list[int]:
    return _turn("tools", encode("\n".join(msgspec.json.encode(tool).decode() for tool in tools)))


def _turn(role: str, body: list[int]) -> list[int]:
    return [IM_START, *encode(f"{role}\n"), *body, IM_END, *NEWLINE]


def _body(message: Message, at: str) -> list[int]:
    if not isinstance(message.content, str) and any(part.get("type") != "text" for part in message.content or ()):
        raise EngineRefused(400, "unsupported_content", "The scripted engine reads text only.", param=at)
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return assistant_body(message.reasoning or "", message.text(), calls)
