"""Canonical request to what every OpenAI-shaped chat endpoint takes, and whether a grammar acts on its answer. Pure."""

from collections.abc import Collection
from typing import Any, Literal, TypeAlias

from rolltape.chat import ChatRequest, Json

ToolGrammar: TypeAlias = Literal["keep", "drop", "always"]
"""What is done about the fields that make a server constrain tool calls, or that it always does."""


def chat_body(request: ChatRequest, *, ours: Collection[str], tool_grammar: ToolGrammar) -> Json:
    """Messages, tools and all that the harness sent beside, without sampling, less the fields `ours`."""
    body = {**extra_fields(request, ours), "messages": [message.to_openai() for message in request.messages]}
    if request.tools:
        loose = tool_grammar == "drop"
        body["tools"] = [_loosened(tool) if loose else tool for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
        if loose:
            body.pop("parallel_tool_calls", None)
    return body


def extra_fields(request: ChatRequest, ours: Collection[str]) -> Json:
    """What the harness sent that no other field of the request holds."""
    return {name: value for name, value in request.extra.items() if name not in ours and value is not None}


def _loosened(tool: Json) -> Json:
    function = tool.get("function")
    if not isinstance(function, dict) or "strict" not in function:
        return tool
    return {**tool, "function": {k: v for k, v in function.items() if k != "strict"}}


def constrained(body: Json, *, grammars: Collection[str], every_call: bool) -> bool:
    """Whether a grammar may take tokens out of the distribution: one of the fields `grammars`, an output format, a
    forced tool choice, a strict tool; with `every_call`, any tool that may be called."""
    form = body.get("response_format")
    if any(body.get(name) for name in grammars) or (form and form.get("type") != "text"):
        return True
    choice, tools = body.get("tool_choice"), body.get("tools") or ()
    if not tools or choice == "none":
        return False
    if choice not in (None, "auto") or every_call:
        return True
    return any(isinstance(tool.get("function"), dict) and tool["function"].get("strict") for tool in tools)


def is_neutral(value: Any, neutral: Any) -> bool:
    """Whether `value` is `neutral`, or one of it where it is a tuple."""
    return bool(value in neutral if isinstance(neutral, tuple) else value == neutral)
