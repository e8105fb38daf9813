"""Tools of a Responses request as chat functions, and names on their way back.

Engines know functions only, so a namespaced tool becomes `namespace__name` and a custom tool a function with the one
string argument `input`. The request remembers how each flat name came about, so that it inverts exactly; a flat name
that two tools would share is refused. Tools that the vendor's servers run are not shown to the model, since nothing
here could run them; they are kept for the record.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rolltape.chat import ChatRequest, Json
from rolltape.wire.openai_errors import invalid, unsupported

HOSTED = (
    "apply_patch", "code_interpreter", "computer", "computer_use", "file_search", "image_generation", "local_shell",
    "mcp", "programmatic_tool_calling", "shell", "tool_search", "web_search",
)  # fmt: skip
"""Tools of the vendor's own, by the start of their type: versions are written behind it (`web_search_2025_08_26`)."""
SHOWN = ("name", "description", "parameters", "strict")
"""What an engine is told of a tool; templates print whatever else a tool holds into the prompt."""
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a flat name comes from. `namespace` None: it has none."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(slots=True)
class Toolbox:
    """The tools of one request, collected. A later definition of one tool takes the place of the earlier."""

    functions: dict[str, Json] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    hosted: list[Json] = field(default_factory=list)
    notes: dict[str, Json] = field(default_factory=dict)

    def add(self, value: Any, at: str) -> None:
        """Take a list of tools, null included."""
        if value is None:
            return
        if not isinstance(value, list):
            raise invalid(at, f"'{at}' must be a list.")
        for index, tool in enumerate(value):
            self._add(tool, f"{at}[{index}]")

    def _add(self, tool: Any, at: str, namespace: str | None = None) -> None:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == "function":
            self._put(Origin(_name(tool, at), namespace), tool, at)
        elif kind == "custom":
            self._put(Origin(_name(tool, at), namespace, custom=True), tool, at)
        elif kind == "namespace" and namespace is None:
            self._add_namespace(tool, at)
        elif isinstance(kind, str) and kind.startswith(HOSTED):
            self.hosted.append(tool)
        else:
            raise unsupported(f"{at}.type", f"Tools of type {str(kind)[:60]!r} are not supported.")

    def _add_namespace(self, tool: Json, at: str) -> None:
        name, inner = _name(tool, at), tool.get("tools")
        self._note(name, tool, ("name", "tools"))
        if not isinstance(inner, list):
            raise invalid(f"{at}.tools", f"'{at}.tools' must be a list.")
        for index, one in enumerate(inner):
            self._add(one, f"{at}.tools[{index}]", name)

    def _put(self, origin: Origin, tool: Json, at: str) -> None:
        flat = flat_name(origin.name, origin.namespace)
        if self.origins.setdefault(flat, origin) != origin:
            raise unsupported(f"{at}.name", f"Two different tools would both be called {flat!r}.")
        function = _custom(tool) if origin.custom else _function(tool)
        self.functions[flat] = {"type": "function", "function": function | {"name": flat}}
        self._note(flat, tool, SHOWN)

    def _note(self, name: str, tool: Json, known: Sequence[str]) -> None:
        rest = {key: value for key, value in tool.items() if key not in known and key != "type"}
        if rest:
            self.notes[name] = rest

    def choice(self, value: Any) -> Any:
        """`tool_choice` in chat's form. Raises where it demands what cannot be had."""
        if value is None or value in CHOICES:
            if value == "required" and not self.functions:
                raise invalid("tool_choice", "'tool_choice' asks for a tool call, and there are no 'tools'.")
            return value
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in ("function", "custom"):
            raise unsupported("tool_choice", f"'tool_choice' {str(kind or value)[:60]!r} cannot be honoured.")
        flat = flat_name(_name(value, "tool_choice"), _namespace(value, "tool_choice"))
        if flat not in self.functions:
            raise invalid("tool_choice", f"'tool_choice' names {flat!r}, which is not in 'tools'.")
        return {"type": "function", "function": {"name": flat}}

    def shown(self) -> tuple[Json, ...]:
        """The tools that the model is shown, in chat's form."""
        return tuple(self.functions.values())

    def remembered(self) -> Json:
        """What `origin` needs to find its way back, and what the model is not shown, as plain JSON."""
        names = {flat: [o.name, o.namespace, o.custom] for flat, o in self.origins.items() if o != Origin(flat)}
        told = {"names": names, "hosted_tools": self.hosted, "tool_notes": self.notes}
        return {key: value for key, value in told.items() if value}


def origin(request: ChatRequest, flat: str) -> Origin:
    """Where the name of a sampled call comes from; a name that no tool has is its own."""
    told = request.aside.get("names", {}).get(flat)
    return Origin(*told) if told else Origin(flat)


def flat_name(name: str, namespace: str | None) -> str:
    """The one name under which the model knows a tool."""
    return f"{namespace}__{name}" if namespace else name


def custom_arguments(text: str) -> str:
    """The input of a custom tool call as arguments, spelled as models are shown JSON by their templates."""
    return json.dumps({"input": text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The inverse. Arguments that are no such object are handed over as they are: the tool says what is wrong."""
    try:
        value = msgspec.json.decode(arguments.encode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError):
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def _function(tool: Json) -> Json:
    return {key: tool[key] for key in SHOWN if key in tool}


def _custom(tool: Json) -> Json:
    form = tool.get("format")
    grammar = isinstance(form, dict) and form.get("type") == "grammar"
    shown = "The whole input, as plain text."
    if isinstance(form, dict) and grammar:
        shown = f"Text in this {form.get('syntax')} grammar:\n{form.get('definition')}"
    text = {"type": "string", "description": shown}
    schema = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    return _function(tool) | {"parameters": schema}


def _name(value: Json, at: str) -> str:
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{at}.name", f"'{at}.name' must be a non-empty string.")
    return name


def _namespace(value: Json, at: str) -> str | None:
    namespace = value.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise invalid(f"{at}.namespace", f"'{at}.namespace' must be a string.")
    return namespace or None


def called(item: Json, at: str) -> str:
    """The flat name of an echoed call."""
    return flat_name(_name(item, at), _namespace(item, at))
