"""Tools and the choice among them, in OpenAI's form.

A tool with `defer_loading` is not in the prompt's tool list: as the protocol has it, its definition appears where a
`tool_reference` names it. So the list at the head of the prompt stays what it was when a harness loads a tool in
mid-conversation, and a longer history still extends a shorter one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolltape.chat import Json
from rolltape.errors import RequestError
from rolltape.wire.anthropic_messages.errors import invalid, shown, unsupported

SERVER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
"""Beginnings of the types of tools that the vendor's cloud runs itself. They are left out and kept in `aside`."""
SEARCH = "tool_search_tool_"

FUNCTION_FIELDS = ("name", "description", "input_schema", "strict")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True, slots=True)
class Tools:
    """`shown`: OpenAI tool objects for the prompt's list. `deferred`: those that references bring in, by name.

    `aside`: what else was sent of them: `deferred_tools`, `server_tools`, and `tool_details` (fields of a tool that
    no prompt shows, by its name).
    """

    shown: tuple[Json, ...] = ()
    deferred: Mapping[str, Json] = field(default_factory=dict)
    aside: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """OpenAI's `tool_choice`, None where it was not sent, and what goes beside it in a request."""

    value: Any = None
    extra: Json = field(default_factory=dict)


def read(value: Any) -> Tools:
    """The `tools` field. Raises `RequestError` for what is no tool and for tools that nothing here can run."""
    if value is None:
        return Tools()
    if not isinstance(value, list):
        raise invalid("tools", "'tools' must be a list.")
    server = [tool for index, tool in enumerate(value) if _is_server_tool(tool, f"tools[{index}]")]
    if server and len(server) == len(value):
        raise _only_the_cloud(server[0])
    own = [(tool, _function(tool, f"tools[{index}]")) for index, tool in enumerate(value) if tool not in server]
    loads_itself = any(tool["type"].startswith(SEARCH) for tool in server)
    deferred = {sent["name"]: tool for sent, tool in own if sent.get("defer_loading") is True and not loads_itself}
    shown_tools = tuple(tool for sent, tool in own if sent["name"] not in deferred)
    details = {sent["name"]: rest for sent, _ in own if (rest := _details(sent))}
    aside = {"deferred_tools": list(deferred.values()), "server_tools": server, "tool_details": details}
    return Tools(shown_tools, deferred, {name: kept for name, kept in aside.items() if kept})


def choice(value: Any, tools: Tools) -> Choice:
    """The `tool_choice` field. Raises `RequestError` for one that cannot be met."""
    if value is None:
        return Choice()
    if not isinstance(value, dict):
        raise invalid("tool_choice", "'tool_choice' must be an object.")
    alone = value.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        raise invalid(
            "tool_choice.disable_parallel_tool_use", "'tool_choice.disable_parallel_tool_use' must be a boolean."
        )
    return Choice(_chosen(value, tools), {"parallel_tool_calls": False} if alone else {})


def _chosen(value: Json, tools: Tools) -> Any:
    kind = value.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": _known_name(value.get("name"), tools)}}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise invalid("tool_choice.type", f"'tool_choice.type' must be auto, any, tool or none, not {shown(kind)}.")
    if kind == "any" and not tools.shown:
        raise invalid("tool_choice", "'tool_choice' asks for a tool call, and there are no 'tools'.")
    return CHOICES[kind]


def _known_name(name: Any, tools: Tools) -> str:
    known = {tool["function"]["name"] for tool in tools.shown}
    if not isinstance(name, str) or name not in known:
        raise invalid("tool_choice.name", f"'tool_choice' names the tool {shown(name)}, which is not in 'tools'.")
    return name


def _is_server_tool(tool: Any, at: str) -> bool:
    if not isinstance(tool, dict):
        raise invalid(at, f"'{at}' must be an object.")
    kind = tool.get("type")
    if kind is None or kind == "custom":
        return False
    if isinstance(kind, str) and kind.startswith(SERVER_TOOLS):
        return True
    raise unsupported(f"{at}.type", f"Tools of type {shown(kind)} are not supported: only tools with a schema are.")


def _only_the_cloud(tool: Json) -> RequestError:
    """403: at a 400 Claude Code would rebuild its prompt for the rest of the session, at the main chain's cost."""
    message = f"The tool of type {shown(tool['type'])} runs in the vendor's cloud, and none is behind this server."
    return RequestError(403, "unsupported_tool", message, param="tools[0].type")


def _function(tool: Json, at: str) -> Json:
    name, schema, description = tool.get("name"), tool.get("input_schema"), tool.get("description")
    if not isinstance(name, str) or not name:
        raise invalid(f"{at}.name", f"'{at}.name' must be a non-empty string.")
    if not isinstance(schema, dict):
        raise invalid(f"{at}.input_schema", f"'{at}.input_schema' must be an object.")
    if description is not None and not isinstance(description, str):
        raise invalid(f"{at}.description", f"'{at}.description' must be a string.")
    function: Json = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = schema
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _details(tool: Json) -> Json:
    known = (*FUNCTION_FIELDS, "type", "cache_control", "defer_loading")
    return {name: value for name, value in tool.items() if name not in known and value is not None}
