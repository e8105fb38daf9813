"""What a request's messages become before a chat template renders them. Pure.

Two matters. A template that knows nothing of tools gets them spelled out in plain messages, in the Hermes form that
most small models are trained on; a conversation without tools passes through untouched. And text that spells a control
token (a file that holds `<|im_end|>`) must reach the model as the text it is: `Guard` keeps the tokenizer from reading
it as a token that only the template may write.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.chat import ChatRequest, Json, Message
from rolltape.engines.llamacpp.tools import CLOSE, OPEN
from rolltape.errors import EngineRefused

TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def messages(request: ChatRequest, *, native_tools: bool) -> tuple[list[Json], list[Json]]:
    """The messages and tools to render. `native_tools`: the template renders tools itself.

    Raises `EngineRefused` for content that is not text.
    """
    if native_tools:
        return [_native(message) for message in request.messages], list(request.tools)
    plain = [_plain(message) for message in request.messages]
    return _with_tools(_joined(plain), request.tools), []


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role


def _text(message: Message) -> str:
    if not isinstance(message.content, tuple):
        return message.content or ""
    for part in message.content:
        if part.get("type") != "text":
            kind = part.get("type")
            raise EngineRefused(
                400, "unsupported_content", f"This model takes text only, not {kind!r} parts.", param="messages"
            )
    return message.text()


def _native(message: Message) -> Json:
    body = message.to_openai()
    return {**body, "role": _role(message), "content": _text(message)}


def _plain(message: Message) -> Json:
    text = _text(message)
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>", "tool": True}
    calls = [
        f'{OPEN}\n{{"name": {_json(call.name)}, "arguments": {call.arguments or "{}"}}}\n{CLOSE}'
        for call in message.tool_calls
    ]
    if calls and text and not text.endswith("\n"):
        text += "\n"
    return {"role": _role(message), "content": text + "\n".join(calls)}


def _joined(plain: Iterable[Json]) -> list[Json]:
    """Tool results that follow each other share one user turn, as in Hermes' own template."""
    out: list[Json] = []
    previous = False
    for message in plain:
        is_tool = message.pop("tool", False)
        if is_tool and previous:
            out[-1]["content"] += "\n" + message["content"]
        else:
            out.append(message)
        previous = is_tool
    return out


def _with_tools(plain: list[Json], tools: Sequence[Json]) -> list[Json]:
    if not tools:
        return plain
    text = TOOLS.format(tools="\n".join(_json(tool) for tool in tools))
    if plain and plain[0]["role"] == "system":
        first = plain[0]["content"]
        return [{"role": "system", "content": f"{first}\n\n{text}" if first else text}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Guard:
    """Knows the texts of the control tokens, and keeps what others wrote from being read as one.

    A mark that occurs nowhere in the request is put inside every such text before the template runs; afterwards only
    the template's own control texts are whole. These are turned into their ids, and the rest, marks removed, is
    tokenized as plain text.
    """

    control: dict[str, int]

    def forged(self, value: Any) -> bool:
        """True when some text in `value` (messages, tools) spells a control token."""
        return any(text in string for string in _strings(value) for text in self.control)

    def mark(self, value: Any, mark: str) -> Any:
        """`value` with `mark` inside every text that spells a control token."""
        pattern = self._pattern()
        return _mapped(value, lambda string: pattern.sub(lambda m: m[0][:1] + mark + m[0][1:], string))

    def split(self, rendered: str, mark: str) -> list[int | str]:
        """Rendered text as control ids and plain runs, marks removed: what `/tokenize` takes as mixed content."""
        parts = self._pattern(group=True).split(rendered)
        mixed = [self.control[part] if part in self.control else part.replace(mark, "") for part in parts]
        return [part for part in mixed if part != ""]

    def _pattern(self, *, group: bool = False) -> re.Pattern[str]:
        texts = "|".join(re.escape(text) for text in sorted(self.control, key=len, reverse=True))
        return re.compile(f"({texts})" if group else texts)


def new_mark(value: Any, candidates: Iterable[str]) -> str:
    """The first candidate that occurs nowhere in `value`."""
    strings = list(_strings(value))
    return next(mark for mark in candidates if not any(mark in string for string in strings))


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
