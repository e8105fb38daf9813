"""Canonical request to the body that vLLM gets, and which distribution its log-probs are of. Pure.

The request is forwarded as it is, but for three things: the capture fields are ours, the sampling is what the gateway
decided, and `max_tokens` is at most the whole context (vLLM refuses more, and itself clamps to what the prompt leaves).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from rolltape.chat import ChatRequest, Json
from rolltape.engines import openai_body
from rolltape.engines.openai_body import ToolGrammar, chat_body, extra_fields, is_neutral
from rolltape.record import LogProbKind

LogProbsMode: TypeAlias = Literal["raw_logprobs", "processed_logprobs"]

CAPTURE: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
}
"""Always streamed, so that deltas pass on as they come and a caller that leaves ends the generation."""

OURS = frozenset(
    {
        "n", "best_of", "echo", "prompt_logprobs", "return_tokens_as_token_ids", "return_prompt_text",
        "logprob_token_ids", "stream_interval", "use_beam_search",
    }
)  # fmt: skip
"""Fields that would change how an answer is told, or of how many samples it is made."""

SAMPLING = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "length_penalty", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "ignore_eos",
        "max_tokens", "stop", "seed",
    }
)  # fmt: skip
"""What vLLM samples by. It ignores every other sampling field, so none is sent, or recorded as applied."""

TRUNCATING: Mapping[str, Any] = {"top_p": 1, "top_k": (0, -1), "min_p": 0}
NEUTRAL: Mapping[str, Any] = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_tokens": 0}

TOKENIZED = (
    "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template", "chat_template_kwargs",
    "media_io_kwargs", "mm_processor_kwargs",
)  # fmt: skip
"""Fields that change how a conversation is rendered; `/tokenize` knows them too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to vLLM. `applied` is the sampling in canonical names, before the prompt's length is known."""

    path: str
    body: Json
    applied: Json
    log_prob_kind: LogProbKind

    def with_max_tokens(self, room: int) -> "Asked":
        """The same with `room` tokens to sample."""
        clamp = {"max_tokens": room}
        return replace(self, body=self.body | clamp, applied=self.applied | clamp)

    def with_prompt(self, ids: list[int]) -> "Asked":
        """The same with `ids` in place of what vLLM renders of the messages."""
        given = {**(self.body.get("kv_transfer_params") or {}), "prompt_token_ids": ids}
        return replace(self, body=self.body | {"kv_transfer_params": given})


def ask(
    request: ChatRequest,
    sampling: Mapping[str, Any],
    *,
    model: str,
    context: int | None,
    mode: LogProbsMode = "raw_logprobs",
    tool_grammar: ToolGrammar = "keep",
) -> Asked:
    """The body for `request`, sampled by `sampling`. `context` in tokens, None = unknown."""
    applied = {k: v for k, v in sorted(sampling.items()) if k in SAMPLING and v is not None}
    if context is not None and isinstance(applied.get("max_tokens"), int):
        applied["max_tokens"] = min(applied["max_tokens"], context)
    if request.response_format:
        applied["response_format"] = request.response_format
    raw = request.prompt is not None
    body = _prompt(request) if raw else _chat(request, tool_grammar)
    body = {**body, **applied, "model": model, **CAPTURE}
    kind = log_prob_kind(body, applied, mode, tool_grammar)
    return Asked("/v1/completions" if raw else "/v1/chat/completions", body, applied, kind)


def _prompt(request: ChatRequest) -> Json:
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt or ())
    return {**extra_fields(request, OURS), "prompt": prompt, "logprobs": 0}


def _chat(request: ChatRequest, tool_grammar: ToolGrammar) -> Json:
    body = chat_body(request, ours=OURS, tool_grammar=tool_grammar)
    return {**body, "messages": _messages(request), "logprobs": True, "top_logprobs": 0}


def _messages(request: ChatRequest) -> list[Json]:
    """Reasoning under both of its names: `/tokenize` knows only the new one, older servers only the old one."""
    messages = [message.to_openai() for message in request.messages]
    for body in messages:
        if body.get("reasoning_content") is not None:
            body.setdefault("reasoning", body["reasoning_content"])
    return messages


def log_prob_kind(body: Json, applied: Json, mode: LogProbsMode, tool_grammar: ToolGrammar = "keep") -> LogProbKind:
    """Of which distribution the log-probs of this generation are; of a grammar's for the whole of it where one acts."""
    if constrained(body, tool_grammar):
        return LogProbKind.GRAMMAR_MASKED
    if mode == "raw_logprobs":
        return LogProbKind.RAW
    return _processed_kind(body, applied)


def _processed_kind(body: Json, applied: Json) -> LogProbKind:
    """Only what the request itself says counts: what it leaves out, the server's own defaults may have changed."""
    temperature = applied.get("temperature")
    plain = all(is_neutral(applied.get(name), neutral) for name, neutral in TRUNCATING.items())
    plain = plain and all(is_neutral(applied.get(name, neutral), neutral) for name, neutral in NEUTRAL.items())
    steered = any(applied.get(name) for name in ("logit_bias", "bad_words", "allowed_token_ids"))
    if temperature is None or not plain or steered or body.get("thinking_token_budget") is not None:
        return LogProbKind.UNKNOWN
    return LogProbKind.RAW if temperature in (0, 1) else LogProbKind.TEMPERATURE_SCALED


def constrained(body: Json, tool_grammar: ToolGrammar = "keep") -> bool:
    """Whether a grammar may take tokens out of the distribution.

    vLLM constrains tool calls not only where one is forced: also where a tool is strict, and where no two calls may
    stand side by side.
    """
    every_call = tool_grammar == "always" or body.get("parallel_tool_calls") is False
    return openai_body.constrained(body, grammars=("structured_outputs",), every_call=every_call)


def tokenize_body(request: ChatRequest, model: str) -> Json:
    """The `/tokenize` request that renders what `ask` would have rendered. Not for prompts that are ids already."""
    if request.prompt is not None:
        return {"model": model, "prompt": request.prompt}
    body: Json = {"model": model, "messages": _messages(request)}
    body |= {name: request.extra[name] for name in TOKENIZED if request.extra.get(name) is not None}
    effort = request.extra.get("reasoning_effort")
    if effort is not None:
        implied = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        body["chat_template_kwargs"] = implied | body.get("chat_template_kwargs", {})
    if request.tools:
        body["tools"] = list(request.tools)
    return body
