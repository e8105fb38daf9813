"""Content parts of Responses items in chat's form, nothing lost.

A part keeps its unknown keys. Parts that name a stored file are refused: there is no store of files here.
"""

from typing import Any

from rolltape.chat import Json
from rolltape.wire.openai_errors import invalid, unsupported

TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def content(value: Any, at: str) -> str | tuple[Json, ...]:
    """A message's or an output's content, in the form it came in: a string, or parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(at, f"'{at}' must be a string or a list of parts.")
    return tuple(_part(part, f"{at}[{index}]") for index, part in enumerate(value))


def joined(parts: str | tuple[Json, ...]) -> str | tuple[Json, ...]:
    """An assistant's parts as the one text they were sampled as; parts that hold more than text stay parts."""
    if isinstance(parts, str) or any(part["type"] != "text" or part.keys() - {"type", "text"} for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def text_of(value: Any, at: str) -> str:
    """The text of reasoning: a list of text parts, null where there is none."""
    if value is None:
        return ""
    parts = content(value, at)
    if isinstance(parts, str) or any(part["type"] != "text" for part in parts):
        raise invalid(at, f"'{at}' must be a list of texts.")
    return "\n\n".join(part["text"] for part in parts)


def meaningful(rest: Json) -> Json:
    """`rest` without the empty fields that SDKs fill in."""
    return {key: value for key, value in rest.items() if value not in (None, [], {})}


def _part(part: Any, at: str) -> Json:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise invalid(at, f"'{at}' must be an object with a 'type'.")
    rest = meaningful(part)
    kind = rest.pop("type")
    if kind in TEXTS:
        return {"type": "text", "text": _string(part, "text", at), **_without(rest, "text")}
    if kind == "refusal":
        return {"type": "refusal", "refusal": _string(part, "refusal", at), **_without(rest, "refusal")}
    if rest.get("file_id") is not None:
        raise unsupported(f"{at}.file_id", "Files are not stored here: send their content instead.")
    if kind == "input_image":
        image = {"url": _string(part, "image_url", at)} | _only(rest, "detail")
        return {"type": "image_url", "image_url": image, **_without(rest, "image_url", "detail")}
    if kind in ("input_file", "input_audio"):
        name = kind.removeprefix("input_")
        return {"type": kind if kind == "input_audio" else name, name: rest.get("input_audio", rest)}
    raise unsupported(f"{at}.type", f"Parts of type {kind[:60]!r} are not supported.")


def _string(part: Json, key: str, at: str) -> str:
    value = part.get(key)
    if not isinstance(value, str):
        raise invalid(f"{at}.{key}", f"'{at}.{key}' must be a string.")
    return value


def _without(rest: Json, *keys: str) -> Json:
    return {key: value for key, value in rest.items() if key not in keys}


def _only(rest: Json, key: str) -> Json:
    return {key: rest[key]} if key in rest else {}
