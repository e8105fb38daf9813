"""Messages and tools of a chat request, read without loss.

Every key that has no place in `Message` goes to its `extra`, and so does every known key whose value is null, so that
`Message.to_openai` gives back what was sent. Tool arguments are text and stay that text, JSON or not: a harness that
echoes what the model sampled must find it unchanged in its next prompt.
"""

from typing import Any, get_args

from rolltape.chat import Json, Message, Role, ToolCall
from rolltape.wire.openai_errors import invalid, unsupported

ROLES = frozenset(get_args(Role))
REASONING = ("reasoning_content", "reasoning")  # DeepSeek, qwen-code and mini-swe-agent; newer vLLM


def messages(value: Any) -> tuple[Message, ...]:
    """The `messages` field. Raises `RequestError` naming the path of what cannot be read."""
    if value is None:
        raise invalid("messages", "Missing required parameter: 'messages'.")
    if not isinstance(value, list) or not value:
        raise invalid("messages", "'messages' must be a list of at least one message.")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(value: Any, at: str) -> Message:
    if not isinstance(value, dict):
        raise invalid(at, f"'{at}' must be an object.")
    rest = dict(value)
    return Message(
        role=_role(rest, at),
        content=_content(rest.pop("content", None), f"{at}.content"),
        reasoning=_reasoning(rest),
        tool_calls=_tool_calls(rest, at),
        tool_call_id=_tool_call_id(rest, at),
        extra=_honest_extra(rest, at),
    )


def _role(rest: Json, at: str) -> Role:
    role: Any = rest.pop("role", None)
    if role == "function":
        raise unsupported(f"{at}.role", "Messages of role 'function' are not supported: use role 'tool'.")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{at}.role", f"'{at}.role' must be one of {', '.join(sorted(ROLES))}, not {_shown(role)}.")
    return role  # type: ignore[return-value]


def _content(value: Any, at: str) -> str | tuple[Json, ...] | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(at, f"'{at}' must be a string, a list of parts or null.")
    for index, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise invalid(f"{at}[{index}]", f"'{at}[{index}]' must be an object with a 'type'.")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise invalid(f"{at}[{index}].text", f"'{at}[{index}].text' must be a string.")
    return tuple(value)


def _reasoning(rest: Json) -> str | None:
    """The first field that holds text. `reasoning` is kept under its own name too: engines differ in what they read."""
    for name in REASONING:
        if isinstance(rest.get(name), str):
            text: str = rest[name]
            if name == "reasoning_content":
                del rest[name]
            return text
    return None


def _tool_calls(rest: Json, at: str) -> tuple[ToolCall, ...]:
    value = rest.get("tool_calls")
    if not value and (value is None or value == []):
        return ()
    if not isinstance(value, list):
        raise invalid(f"{at}.tool_calls", f"'{at}.tool_calls' must be a list.")
    del rest["tool_calls"]
    return tuple(_tool_call(item, f"{at}.tool_calls[{index}]") for index, item in enumerate(value))


def _tool_call(value: Any, at: str) -> ToolCall:
    if not isinstance(value, dict):
        raise invalid(at, f"'{at}' must be an object.")
    rest = dict(value)
    kind = rest.pop("type", "function")
    if kind != "function":
        raise unsupported(f"{at}.type", f"'{at}.type' must be 'function', not {_shown(kind)}.")
    function = rest.pop("function", None)
    if not isinstance(function, dict):
        raise invalid(f"{at}.function", f"'{at}.function' must be an object.")
    if not function.keys() <= {"name", "arguments"}:
        rest["function"] = function
    return ToolCall(
        id=_text(rest.pop("id", None), f"{at}.id"),
        name=_text(function.get("name"), f"{at}.function.name"),
        arguments=_text(function.get("arguments"), f"{at}.function.arguments"),
        extra=rest,
    )


def _tool_call_id(rest: Json, at: str) -> str | None:
    if rest.get("tool_call_id") is None:
        return None
    return _text(rest.pop("tool_call_id"), f"{at}.tool_call_id")


def _honest_extra(rest: Json, at: str) -> Json:
    """`rest`, unless it says something that a chat template would not show to the model."""
    for name, instead in (("function_call", "tool_calls"), ("audio", "text content")):
        if rest.get(name) is not None:
            raise unsupported(f"{at}.{name}", f"'{at}.{name}' is not supported: use {instead}.")
    return rest


def tools(value: Any) -> tuple[Json, ...]:
    """The `tools` field, each as sent. Raises `RequestError` for a tool that is no function."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid("tools", "'tools' must be a list.")
    for index, tool in enumerate(value):
        _check_tool(tool, f"tools[{index}]")
    return tuple(value)


def _check_tool(tool: Any, at: str) -> None:
    if not isinstance(tool, dict):
        raise invalid(at, f"'{at}' must be an object.")
    kind = tool.get("type", "function")
    if kind != "function":
        raise unsupported(f"{at}.type", f"Tools of type {_shown(kind)} are not supported: only 'function' is.")
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise invalid(f"{at}.function.name", f"'{at}.function' must be an object with a 'name'.")


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise invalid(at, f"'{at}' must be a string, not {_shown(value)}.")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
