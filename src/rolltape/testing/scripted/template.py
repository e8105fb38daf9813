"""The scripted engine's chat template: ChatML with thinking and tool calls.

It is append-only: an assistant turn that is echoed verbatim renders to exactly the ids that were sampled, so the
rendering of a longer history starts with the prompt and generation of the call before. Verbatim means the same
reasoning, content, tool names and argument strings; a harness that drops or rewrites one of them breaks the prefix
here just as it does with a real model.

Strategy: turns are put together as strings of one character a token (its code point is the id), since joining strings
is the fastest thing that Python does; a prompt becomes an array once, at the end.
"""

import msgspec
import numpy as np

from rolltape.chat import ChatRequest, Json, Message
from rolltape.errors import EngineRefused
from rolltape.testing.scripted.tokenizer import (
    END_THINK,
    END_TOOL_CALL,
    IM_END,
    IM_START,
    IMAGE,
    THINK,
    TOOL_CALL,
    VOCABULARY,
    encode,
)
from rolltape.tokens import IntArray, token_ids

START, END = chr(IM_START), chr(IM_END)
GENERATION_PROMPT = f"{START}assistant\n"
IMAGE_TOKENS = 4 * chr(IMAGE)


def render(request: ChatRequest, *, images: bool = False) -> IntArray:
    """The prompt ids of `request`, generation prompt included; a raw prompt is taken as it is.

    `images`: each becomes the same number of placeholders, whatever it shows. Raises `EngineRefused` for content that
    is neither and for ids that are no tokens.
    """
    if request.prompt is not None:
        return _raw(request.prompt)
    turns = [_tools(request.tools)] if request.tools else []
    for index, message in enumerate(request.messages):
        turns.append(_turn(message.role, _body(message, f"messages[{index}].content", images)))
    units = "".join([*turns, GENERATION_PROMPT]).encode("utf-16-le")
    return token_ids(np.frombuffer(units, np.uint16).astype(np.int32))


def _raw(prompt: str | tuple[int, ...]) -> IntArray:
    ids = encode(prompt) if isinstance(prompt, str) else list(prompt)
    if any(not 0 <= token < VOCABULARY for token in ids):
        raise EngineRefused(400, "unknown_token", f"Token ids go from 0 to {VOCABULARY - 1}.", param="prompt")
    return token_ids(ids)


def assistant_ids(reasoning: str, text: str, tool_calls: tuple[tuple[str, str], ...]) -> list[int]:
    """What the model samples for such a turn, end token excluded. `tool_calls` are (name, arguments)."""
    return list(map(ord, _assistant(reasoning, text, tool_calls)))


def _assistant(reasoning: str, text: str, tool_calls: tuple[tuple[str, str], ...]) -> str:
    thinking = f"{chr(THINK)}{_bytes(reasoning)}{chr(END_THINK)}" if reasoning else ""
    return thinking + _bytes(text) + "".join(_call(name, arguments) for name, arguments in tool_calls)


def _call(name: str, arguments: str) -> str:
    return f"{chr(TOOL_CALL)}{_bytes(name)}\n{_bytes(arguments)}{chr(END_TOOL_CALL)}"


def _tools(tools: tuple[Json, ...]) -> str:
    return _turn("tools", _bytes("\n".join(msgspec.json.encode(tool).decode() for tool in tools)))


def _turn(role: str, body: str) -> str:
    return f"{START}{role}\n{body}{END}\n"


def _body(message: Message, at: str, images: bool) -> str:
    shown = message.content if isinstance(message.content, tuple) else ()
    if any(part.get("type") != "text" and not (images and part.get("type") == "image_url") for part in shown):
        raise EngineRefused(400, "unsupported_content", "The scripted engine reads text only.", param=at)
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    pictures: int = sum(part.get("type") == "image_url" for part in shown)
    return IMAGE_TOKENS * pictures + _assistant(message.reasoning or "", message.text(), calls)


def _bytes(text: str) -> str:
    """One character for each UTF-8 byte of `text`."""
    return text if text.isascii() else text.encode().decode("latin-1")
