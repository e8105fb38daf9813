"""Canonical request to the body that SGLang gets, and which distribution its log-probs are of. Pure.

Three ways to ask, because none gives everything:

    streamed chat   deltas as they come; ids in one chunk at the end, no ids with the log-probs, no weight versions
    whole chat      everything, each id beside its log-prob, and nothing before the end
    native          everything, streamed; but no rendering and no parsing, so for raw prompts only
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from rolltape.chat import ChatRequest, Json
from rolltape.engines.openai_body import ToolGrammar, chat_body, constrained, extra_fields, is_neutral
from rolltape.errors import EngineRefused
from rolltape.record import LogProbKind
from rolltape.tokens import IntArray

CHAT, NATIVE, TOKENIZE = "/v1/chat/completions", "/generate", "/tokenize"

STREAMED: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_input_ids_in_sglext": True,
    "return_output_ids_in_sglext": True,
}
WHOLE: Mapping[str, Any] = {
    "stream": False,
    "return_token_ids": True,
    "return_prompt_token_ids": True,
    "return_meta_info": True,
}
OURS = frozenset(
    {
        *STREAMED, *WHOLE, "n", "best_of", "echo", "logprobs", "top_logprobs", "input_ids", "max_completion_tokens",
        "return_flat_raw_output_top_logprobs", "no_stop_trim", "beam_width", "lora_path", "rid",
    }
)  # fmt: skip
"""Fields that would change how an answer is told, which prompt it answers, or of how many samples it is made."""

SAMPLING: Mapping[str, str] = {
    name: name
    for name in (
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "logit_bias", "ignore_eos", "stop",
    )
} | {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}  # fmt: skip
"""What SGLang samples by, and what its native endpoint calls it. Nothing else is sent, or recorded as applied."""

GRAMMARS = ("regex", "ebnf", "json_schema", "structural_tag")
STEERING = ("custom_logit_processor", "custom_params", "watermark")
NATIVE_SAMPLING = (
    *GRAMMARS, "stop_token_ids", "stop_regex", "skip_special_tokens", "spaces_between_special_tokens",
    "custom_params", "watermark",
)  # fmt: skip
"""Fields beyond OpenAI's that belong among the native sampling parameters."""

PENALTIES: Mapping[str, Any] = {
    "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_tokens": 0, "logit_bias": (None, {}),
}  # fmt: skip
"""What acts on the logits before SGLang takes log-probs of them, in either of its modes, and what leaves them alone."""
DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
GREEDY = 1e-6
"""Temperatures below this are greedy to SGLang."""


@dataclass(frozen=True, slots=True)
class Server:
    """What the server does beyond what a request says.

    `parses`: it has a parser for tool calls or reasoning. `defaults`: what it samples by where a request leaves it out,
    None = not known.
    """

    original_logprobs: bool = False
    tool_grammar: ToolGrammar = "keep"
    parses: bool = False
    defaults: str | None = None
    preferred: bool = False

    def told(self, info: Json) -> "Server":
        """The same with what `/server_info` says."""
        parses = bool(info.get("tool_call_parser") or info.get("reasoning_parser"))
        preferred = bool(info.get("preferred_sampling_params"))
        return replace(self, parses=parses, defaults=info.get("sampling_defaults"), preferred=preferred)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to SGLang. `applied` is the sampling in canonical names; `prompt` where it is known before."""

    path: str
    body: Json
    applied: Json
    log_prob_kind: LogProbKind
    prompt: IntArray | None = None

    def with_max_tokens(self, room: int) -> "Asked":
        """The same with `room` tokens to sample."""
        if self.path == NATIVE:
            clamp: Json = {"sampling_params": self.body["sampling_params"] | {"max_new_tokens": room}}
        else:
            clamp = {"max_tokens": room}
        return replace(self, body=self.body | clamp, applied=self.applied | {"max_tokens": room})

    def within(self, context: int | None, prompt: IntArray) -> "Asked":
        """The same with `prompt` known, and no more to sample than it leaves. Raises `EngineRefused`."""
        known = replace(self, prompt=prompt)
        if context is None:
            return known
        room = context - len(prompt)
        if room < 1:
            raise EngineRefused.context_overflow(len(prompt), context)
        wanted = self.applied.get("max_tokens")
        return known.with_max_tokens(room) if isinstance(wanted, int) and wanted > room else known


def applied_sampling(sampling: Mapping[str, Any]) -> Json:
    """What SGLang is to apply; "no limit" under the one name that it takes for it."""
    applied = {name: value for name, value in sorted(sampling.items()) if name in SAMPLING and value is not None}
    return applied | {"top_k": -1} if applied.get("top_k") == 0 else applied


def ask_chat(
    request: ChatRequest, sampling: Mapping[str, Any], server: Server, *, model: Json, streamed: bool
) -> Asked:
    """The chat request; `model` are the fields that name the model."""
    applied = applied_sampling(sampling)
    if request.response_format:
        applied["response_format"] = request.response_format
    body = {**chat_body(request, ours=OURS, tool_grammar=server.tool_grammar), **applied, **model}
    body |= {"logprobs": True, **(STREAMED if streamed else WHOLE)}
    kind = log_prob_kind(body, applied, server, known=server.defaults == "openai" and not server.preferred)
    return Asked(CHAT, body, applied, kind)


def ask_raw(request: ChatRequest, sampling: Mapping[str, Any], server: Server, *, model: Json) -> Asked:
    """The native request for a raw prompt. Raises `EngineRefused`."""
    applied, extra = applied_sampling(sampling), extra_fields(request, OURS)
    grammar = _native_grammar(request.response_format)
    if request.response_format:
        applied["response_format"] = request.response_format
    params: Json = {"max_new_tokens": None} | {SAMPLING[k]: v for k, v in applied.items() if k in SAMPLING}
    params |= grammar | {name: extra[name] for name in NATIVE_SAMPLING if name in extra}
    body: Json = {
        "text" if isinstance(request.prompt, str) else "input_ids": _prompt(request),
        "sampling_params": params,
        "stream": True,
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "return_prompt_token_ids": True,
        **{name: extra[name] for name in ("custom_logit_processor",) if name in extra},
        **({"lora_path": model["lora_path"]} if "lora_path" in model else {}),
    }
    known = server.defaults is not None and not server.preferred
    return Asked(NATIVE, body, applied, log_prob_kind(body | params, applied, server, known=known))


def _prompt(request: ChatRequest) -> str | list[int]:
    return request.prompt if isinstance(request.prompt, str) else list(request.prompt or ())


def _native_grammar(form: Json | None) -> Json:
    match form:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"json_schema": '{"type": "object"}'}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": msgspec.json.encode(schema).decode()}
    raise EngineRefused(400, "invalid_request", "Raw prompts take no such response_format.", param="response_format")


def log_prob_kind(body: Json, applied: Json, server: Server, *, known: bool) -> LogProbKind:
    """Of which distribution the log-probs are; of a grammar's for the whole generation where one acts.

    `known`: what the request leaves out is at OpenAI's defaults. Truncation (top_p, top_k, min_p) never shows: SGLang
    takes log-probs before it.
    """
    if constrained(body, grammars=GRAMMARS, every_call=server.tool_grammar == "always"):
        return LogProbKind.GRAMMAR_MASKED
    told = {**DEFAULTS, **applied} if known else applied
    by_model = not known and server.defaults is not None
    penalised = any(not is_neutral(told.get(name, _neutral(neutral)), neutral) for name, neutral in PENALTIES.items())
    if penalised or any(body.get(name) for name in STEERING) or (by_model and "repetition_penalty" not in told):
        return LogProbKind.UNKNOWN
    return LogProbKind.RAW if server.original_logprobs else _scaled_kind(told, by_model)


def _scaled_kind(told: Json, by_model: bool) -> LogProbKind:
    temperature = told.get("temperature")
    if not isinstance(temperature, int | float):
        return LogProbKind.UNKNOWN
    if temperature < GREEDY or temperature == 1:
        return LogProbKind.RAW
    if told.get("top_k") == 1 or (by_model and "top_k" not in told):
        # scaled or not by what else happens to be in the batch: at 1 only while all of it is greedy
        return LogProbKind.UNKNOWN
    return LogProbKind.TEMPERATURE_SCALED


def _neutral(neutral: Any) -> Any:
    return neutral[0] if isinstance(neutral, tuple) else neutral


def tokenize_body(request: ChatRequest, model: Json, tool_grammar: ToolGrammar = "keep") -> Json:
    """The `/tokenize` request that renders what the chat endpoint would render."""
    if request.prompt is not None:
        return {**model, "prompt": request.prompt}
    body = {**chat_body(request, ours=OURS, tool_grammar=tool_grammar), **model}
    return body | ({"response_format": request.response_format} if request.response_format else {})


def has_media(request: ChatRequest) -> bool:
    """Whether anything but text is in it, which `/tokenize` renders without what stands for it in the prompt."""
    parts = (part for message in request.messages if isinstance(message.content, tuple) for part in message.content)
    return any(part.get("type") != "text" for part in parts)
