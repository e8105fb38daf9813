"""Recorded conversations, a real chat template and a real tokenizer, and the calls that they come to.

The template is Qwen3's; the tokenizer is a byte-level BPE of 2,048 tokens in its form, trained on the recorded traffic.
An assistant turn is sampled in the words that the template would write, thinking included, so that an honest echo
extends its call exactly unless the template itself takes something away.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from rolltape.chat import ChatRequest, Message
from rolltape.cli.vocabulary import from_path
from rolltape.rebuild.breaks import Explanation, explain
from rolltape.rebuild.policy import KindPolicy
from rolltape.rebuild.tree import grow
from rolltape.record import TokenEntry
from rolltape.wire.anthropic_messages import AnthropicMessages
from rolltape.wire.openai_chat import OpenAIChat
from rolltape.wire.openai_responses import OpenAIResponses

DATA = Path(__file__).parents[2] / "data"
TOKENIZER = DATA / "breaks" / "tokenizer.json"
PROTOCOLS = {
    "claude-code": AnthropicMessages(),
    "codex": OpenAIResponses(),
    "mini-swe-agent": OpenAIChat(),
    "mini-swe-agent-responses": OpenAIResponses(),
    "opencode": OpenAIChat(),
    "qwen-code": OpenAIChat(),
}
IMAGE = "<|vision_start|>{}<|vision_end|>"
POLICY = KindPolicy()


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


@cache
def text() -> Any:
    return from_path(TOKENIZER)


@cache
def template() -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((DATA / "breaks" / "qwen3.jinja").read_text())


@cache
def conversations(harness: str) -> tuple[ChatRequest, ...]:
    """Every recorded request of at least six messages."""
    lines = [msgspec.json.decode(line) for line in (DATA / "traffic" / f"{harness}.jsonl").read_bytes().splitlines()]
    tools = {line["id"]: line["body"].get("tools") for line in lines}
    found = []
    for line in lines:
        body = line["body"] | ({"tools": tools[line["tools_of"]]} if "tools_of" in line else {})
        if len(body.get("messages") or body["input"]) < 4:
            continue
        request = PROTOCOLS[harness].decode(line["path"].partition("?")[0], msgspec.json.encode(body), {})
        if len(request.messages) >= 6:
            found.append(request)
    return tuple(found)


def render(request: ChatRequest, *, parse_arguments: bool = False) -> list[int]:
    """The prompt ids. `parse_arguments`: as an engine does that gives its template objects."""
    messages = [_plain(message, parse_arguments) for message in request.messages]
    prompt = template().render(messages=messages, tools=list(request.tools), add_generation_prompt=True)
    return list(tokenizer().encode(prompt, add_special_tokens=False).ids)


def _plain(message: Message, parse_arguments: bool) -> dict[str, Any]:
    body = message.to_openai()
    body["role"] = "system" if message.role == "developer" else message.role
    body["content"] = flat(message)
    for call in body.get("tool_calls", ()) if parse_arguments else ():
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return body


def flat(message: Message) -> str:
    """The content as text; an image as as many pads as it says."""
    if not isinstance(message.content, tuple):
        return message.content or ""
    return "".join(
        part["text"] if part["type"] == "text" else IMAGE.format("<|image_pad|>" * part["pads"])
        for part in message.content
    )


def sampled(message: Message) -> list[int]:
    thinking = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning else ""
    calls = [
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.tool_calls
    ]
    spoken = "\n".join([flat(message), *calls] if flat(message) else calls)
    return list(tokenizer().encode(f"{thinking}{spoken}<|im_end|>", add_special_tokens=False).ids)


def entry(name: str, request: ChatRequest, reply: Message | None, **more: Any) -> TokenEntry:
    """The call that sampled `reply`; a short answer if None."""
    reply = reply or Message("assistant", "Done, all of it.")
    ids = more.pop("generation", None) or sampled(reply)
    return TokenEntry(
        rollout_id="r",
        model_call_id=name,
        prompt_token_ids=more.pop("prompt", None) or render(request),
        generation_token_ids=ids,
        generation_log_probs=[-0.5] * len(ids),
        request_text=msgspec.json.encode(request),
        output_items=tuple(items(reply)),
        step_index=int(name.removeprefix("c")),
        **more,
    )


def items(reply: Message) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if reply.reasoning:
        found.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reply.reasoning}]})
    if reply.content:
        found.append(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": flat(reply)}]}
        )
    for call in reply.tool_calls:
        found.append({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
    return found


def upto(request: ChatRequest, count: int) -> ChatRequest:
    return msgspec.structs.replace(request, messages=request.messages[:count])


def replies(request: ChatRequest) -> list[int]:
    """Where the request has assistant turns with something said in them."""
    return [
        index
        for index, message in enumerate(request.messages)
        if index and message.role == "assistant" and (flat(message).strip() or message.tool_calls)
    ]


def history(request: ChatRequest, last: int, *, whole: bool = True) -> list[TokenEntry]:
    """The calls that sampled the assistant turns up to index `last`; only that one unless `whole`."""
    chosen = [at for at in replies(request) if at <= last] if whole else [last]
    return [entry(f"c{at}", upto(request, at), request.messages[at]) for at in chosen]


def explained(entries: Sequence[TokenEntry], last: TokenEntry, *, texts: bool = True) -> Explanation:
    """What is said of the only departure of `last`. Raises `ValueError` where there is none."""
    tree = grow((*entries, last), POLICY)
    (found,) = (one for one in explain(tree, text() if texts else None) if one.call == last.model_call_id)
    return found
