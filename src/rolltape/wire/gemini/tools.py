"""Tools and the choice among them, in OpenAI's form.

Tools that the vendor's cloud runs itself (a search, a code sandbox) are left out and kept in `aside`; a request that
has no other tools is refused, since nothing here could answer it.
"""

from dataclasses import dataclass, field
from typing import Any

from rolltape.chat import Json
from rolltape.wire.gemini.errors import invalid, unsupported
from rolltape.wire.gemini.fields import listed, shown, string, taken
from rolltape.wire.gemini.schema import json_schema

DECLARED = ("name", "description", "parameters", "parametersJsonSchema")
MODES = {"AUTO": "auto", "MODE_UNSPECIFIED": "auto", "ANY": "required", "NONE": "none"}


@dataclass(frozen=True, slots=True)
class Tools:
    """`shown`: OpenAI tool objects. `aside`: `server_tools`, and `tool_details` (fields that no prompt shows)."""

    shown: tuple[Json, ...] = ()
    aside: Json = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.shown]


def read(value: Any) -> Tools:
    """The `tools` field. Raises `RequestError` for what is no tool and for tools that nothing here can run."""
    functions: list[Json] = []
    details: Json = {}
    server: list[Json] = []
    for index, item in enumerate(listed(value, "tools")):
        at = f"tools[{index}]"
        tool = taken(item, at)
        for number, declared in enumerate(listed(tool.pop("functionDeclarations", None), f"{at}.functionDeclarations")):
            function, rest = _function(declared, f"{at}.functionDeclarations[{number}]")
            functions.append({"type": "function", "function": function})
            details |= {function["name"]: rest} if rest else {}
        server += [tool] if tool else []
    if server and not functions:
        name = f"tools[0].{next(iter(server[0]))}"
        raise unsupported(name, f"'{name}' runs in the vendor's cloud, and none is behind this server.")
    aside = {"server_tools": server, "tool_details": details}
    return Tools(tuple(functions), {name: kept for name, kept in aside.items() if kept})


def _function(value: Any, at: str) -> tuple[Json, Json]:
    """A declaration as a function, and what else it says (the shape of its result...)."""
    declared = taken(value, at)
    function: Json = {"name": string(declared.get("name"), f"{at}.name")}
    if "description" in declared:
        function["description"] = string(declared["description"], f"{at}.description", empty=True)
    for name, read_schema in (("parameters", json_schema), ("parametersJsonSchema", dict)):
        if name in declared and "parameters" not in function:
            if not isinstance(declared[name], dict):
                raise invalid(f"{at}.{name}", f"'{at}.{name}' must be an object.")
            function["parameters"] = read_schema(declared[name])
    return function, {name: value for name, value in declared.items() if name not in DECLARED}


def choice(value: Any, tools: Tools) -> tuple[Any, Json]:
    """The `toolConfig` field as OpenAI's `tool_choice`, None where it says nothing, and what else it holds."""
    if value is None:
        return None, {}
    config = taken(value, "toolConfig")
    at = "toolConfig.functionCallingConfig"
    calling = taken(config.pop("functionCallingConfig", {}), at)
    allowed = [string(name, f"{at}.allowedFunctionNames") for name in listed(calling.get("allowedFunctionNames"), at)]
    mode = calling.get("mode")
    if mode is None and not allowed:
        return None, config
    if not isinstance(mode, str) or mode not in MODES:
        raise unsupported(f"{at}.mode", f"'{at}.mode' must be AUTO, ANY or NONE, not {shown(mode)}.")
    return _chosen(MODES[mode], allowed, tools, at), config


def _chosen(mode: str, allowed: list[str], tools: Tools, at: str) -> Any:
    if mode == "required" and not tools.shown:
        raise invalid(f"{at}.mode", f"'{at}.mode' asks for a function call, and there are no functions in 'tools'.")
    if not allowed or set(allowed) == set(tools.names):
        return mode
    unknown = [name for name in allowed if name not in tools.names]
    if unknown:
        raise invalid(
            f"{at}.allowedFunctionNames", f"{shown(unknown[0])} is allowed, and no function in 'tools' has that name."
        )
    if mode != "required" or len(allowed) > 1:
        raise unsupported(
            f"{at}.allowedFunctionNames", "Only one function alone can be called for: leave the others out of 'tools'."
        )
    return {"type": "function", "function": {"name": allowed[0]}}
