"""Contents of a request as canonical messages, in place and in order.

Append-only in, append-only out: what a content becomes depends on nothing that comes after it. Neighbouring contents of
the model are one assistant turn (the SDK's chats keep one for every chunk of a stream), its texts the one text that was
sampled. A content of the user gives tool messages for its function responses and user messages for the rest.

Calls and responses without an id (most clients) are told apart by their number in the conversation.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rolltape.chat import Json, Message, ToolCall
from rolltape.wire.gemini.errors import invalid, unsupported
from rolltape.wire.gemini.fields import listed, shown, string, taken

UNPARSED = "__unparsedArguments"
"""Under this name goes what the model sampled as arguments and what is no JSON object."""

ABOUT = ("thought", "thoughtSignature", "partMetadata", "mediaResolution", "videoMetadata")
"""Fields of a part that are beside its data."""

TOLD = ("output", "result")
"""A response that is one text under one of these names is that text."""

_JSON = json.JSONEncoder(ensure_ascii=False)


def spelled(value: Any) -> str:
    """The one spelling of JSON in prompts: keys as received, as Python's `json.dumps` without escapes writes it."""
    return _JSON.encode(value)


def read(system: Any, value: Any, *, counting: bool) -> tuple[Message, ...]:
    """The `systemInstruction` and `contents` fields. `counting`: any part of a conversation may be counted."""
    contents = [value] if isinstance(value, dict) else listed(value, "contents")
    if not contents:
        raise invalid("contents", "'contents' must hold at least one content.")
    reader = _Reader()
    for index, content in enumerate(contents):
        reader.add(content, f"contents[{index}]")
    if not counting and reader.messages[-1].role == "assistant":
        raise unsupported("contents", "'contents' must not end with a turn of the model: replies are not prefilled.")
    return (*_system(system), *reader.messages)


def _system(value: Any) -> list[Message]:
    if value is None:
        return []
    at = "systemInstruction"
    if isinstance(value, str):
        return [Message("system", value)] if value else []
    texts = []
    for part, where in _parts(taken(value, at), at):
        if "text" not in part:
            raise unsupported(where, f"'{where}' must be a text: a system instruction holds nothing else.")
        texts.append({"type": "text", "text": string(part["text"], f"{where}.text", empty=True)})
    return [Message("system", _content(texts))] if texts else []


def _parts(content: Json, at: str) -> Iterator[tuple[Json, str]]:
    parts = content.get("parts")
    for index, part in enumerate([parts] if isinstance(parts, dict) else listed(parts, f"{at}.parts")):
        yield taken({"text": part} if isinstance(part, str) else part, f"{at}.parts[{index}]"), f"{at}.parts[{index}]"


def _data(part: Json, at: str) -> str:
    """The name of the one field that holds the part's data; a part with a signature alone is an empty text."""
    data = [name for name in part if name not in ABOUT]
    if not data and "thoughtSignature" in part:
        part["text"] = ""
        return "text"
    if len(data) != 1:
        raise invalid(at, f"'{at}' must hold exactly one kind of data, not {', '.join(data) or 'none'}.")
    return data[0]


def _about(part: Json) -> Json:
    return {name: part[name] for name in ABOUT if name in part and name != "thought"}


def _content(parts: list[Json]) -> str | tuple[Json, ...]:
    """The parts, or the string where there is nothing else."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else tuple(parts)


@dataclass(slots=True)
class _Reader:
    """The messages so far, and the calls that no response has answered: (name, id)."""

    messages: list[Message] = field(default_factory=list)
    pending: list[tuple[str, str]] = field(default_factory=list)
    calls: int = 0

    def add(self, value: Any, at: str) -> None:
        content = taken(value, at)
        role = content.get("role", "user")
        if role == "model":
            self._model(content, at)
        elif role in ("user", "function"):
            self._user(content, at)
        else:
            raise invalid(f"{at}.role", f"'{at}.role' must be user or model, not {shown(role)}.")

    # The model's turns

    def _model(self, content: Json, at: str) -> None:
        said, thought, parts = "", "", []
        calls: list[ToolCall] = []
        about: list[Json] = []
        for part, where in _parts(content, at):
            kind = _data(part, where)
            if kind == "text":
                text = string(part["text"], f"{where}.text", empty=True)
                thought, said = (thought + text, said) if part.get("thought") is True else (thought, said + text)
            elif kind == "functionCall":
                calls.append(self._call(part["functionCall"], f"{where}.functionCall"))
            else:
                parts.append(shown_part(part, kind, where))
            about += [_about(part) | {"of": kind}] if _about(part) else []
        text_parts = [{"type": "text", "text": said}] if said else []
        turn = Message(
            "assistant",
            tuple(text_parts + parts) if parts else said if said or not calls else None,
            reasoning=thought or None,
            tool_calls=tuple(calls),
            aside={"parts": about} if about else {},
        )
        if self.messages and self.messages[-1].role == "assistant":
            turn = _joined(self.messages.pop(), turn)
        self.messages.append(turn)

    def _call(self, value: Any, at: str) -> ToolCall:
        call = taken(value, at)
        name = string(call.pop("name", None), f"{at}.name")
        args = call.pop("args", {})
        if not isinstance(args, dict):
            raise invalid(f"{at}.args", f"'{at}.args' must be an object.")
        call_id = string(call.pop("id", None) or f"call_{self.calls}", f"{at}.id")
        if call:
            field_name = f"{at}.{next(iter(call))}"
            raise unsupported(field_name, f"'{field_name}' cannot be honoured: arguments are sent whole, as 'args'.")
        self.calls += 1
        self.pending.append((name, call_id))
        return ToolCall(call_id, name, arguments(args))

    # The user's turns

    def _user(self, content: Json, at: str) -> None:
        turn: list[Message] = []
        parts: list[Json] = []
        about: list[Json] = []
        for part, where in _parts(content, at):
            kind = _data(part, where)
            if kind == "functionResponse":
                turn += [Message("user", _content(parts))] if parts else []
                parts = []
                turn.append(self._response(part["functionResponse"], f"{where}.functionResponse"))
                continue
            parts.append(shown_part(part, kind, where))
            about += [_about(part)] if _about(part) else []
        if parts or not turn:
            turn.append(Message("user", _content(parts), aside={"parts": about} if about else {}))
        self.messages += turn

    def _response(self, value: Any, at: str) -> Message:
        response = taken(value, at)
        name = string(response.pop("name", None), f"{at}.name")
        call_id = self._answered(name, response.pop("id", None))
        told = response.pop("response", {})
        if not isinstance(told, dict):
            raise invalid(f"{at}.response", f"'{at}.response' must be an object.")
        inner = response.pop("parts", None)
        parts = [shown_part(part, _data(part, where), where) for part, where in _parts({"parts": inner}, at)]
        text = {"type": "text", "text": _told(told)}
        return Message("tool", _content([text, *parts]), tool_call_id=call_id, extra={"name": name}, aside=response)

    def _answered(self, name: str, given: Any) -> str:
        """The id of the call that a response answers: its own, or that of the oldest open call of that name."""
        fits = [call for call in self.pending if (call[1] == given if given else call[0] == name)]
        if fits:
            self.pending.remove(fits[0])
            return fits[0][1]
        return str(given) if given else f"call_{name}"


def _joined(before: Message, after: Message) -> Message:
    """Two neighbouring pieces of one turn."""
    about = [*before.aside.get("parts", ()), *after.aside.get("parts", ())]
    content: str | tuple[Json, ...] | None
    if isinstance(before.content, tuple) or isinstance(after.content, tuple):
        content = (*_as_parts(before.content), *_as_parts(after.content))
    elif before.content is None and after.content is None:
        content = None
    else:
        content = (before.content or "") + (after.content or "")
    calls = before.tool_calls + after.tool_calls
    return msgspec.structs.replace(
        before,
        content=None if content == "" and calls else content,
        reasoning=(before.reasoning or "") + (after.reasoning or "") or None,
        tool_calls=calls,
        aside={"parts": about} if about else {},
    )


def _as_parts(content: str | tuple[Json, ...] | None) -> tuple[Json, ...]:
    return content if isinstance(content, tuple) else ({"type": "text", "text": content},) if content else ()


def _told(response: Json) -> str:
    name, value = next(iter(response.items()), ("", None))
    return value if len(response) == 1 and name in TOLD and isinstance(value, str) else spelled(response)


def arguments(args: Json) -> str:
    """The text of a call's arguments; text that was no object comes back as it was sampled."""
    raw = args.get(UNPARSED)
    return raw if len(args) == 1 and isinstance(raw, str) else spelled(args)


def shown_part(part: Json, kind: str, at: str) -> Json:
    """A part of the user's, or of a result, in OpenAI's form. Raises for data that no engine here could be shown."""
    match kind:
        case "text":
            return {"type": "text", "text": string(part["text"], f"{at}.text", empty=True)}
        case "inlineData":
            blob = taken(part["inlineData"], f"{at}.inlineData")
            mime = string(blob.get("mimeType"), f"{at}.inlineData.mimeType")
            return _media(mime, f"data:{mime};base64,{_standard(blob.get('data'), f'{at}.inlineData.data')}", at)
        case "fileData":
            file = taken(part["fileData"], f"{at}.fileData")
            uri = string(file.get("fileUri"), f"{at}.fileData.fileUri")
            if not uri.startswith(("http://", "https://")) or "/v1beta/files/" in uri:
                raise unsupported(f"{at}.fileData", "Files are not stored here: send their content as 'inlineData'.")
            return _media(string(file.get("mimeType"), f"{at}.fileData.mimeType"), uri, at)
        case _:
            raise unsupported(f"{at}.{kind}", f"Parts of kind '{kind[:60]}' are not supported at '{at}'.")


def _media(mime: str, url: str, at: str) -> Json:
    if not mime.startswith("image/"):
        raise unsupported(f"{at}", f"Media of type {shown(mime)} are not supported: only images are.")
    return {"type": "image_url", "image_url": {"url": url}}


def _standard(value: Any, at: str) -> str:
    """Base64 in its standard alphabet: SDKs write the one that is safe in URLs."""
    return string(value, at).translate(_ALPHABET)


_ALPHABET = str.maketrans("-_", "+/")
