"""Canonical chat: the one form that every wire protocol is decoded to and every engine is driven with.

Values only. Requests keep what they do not understand (`extra`), so that forwarding one loses nothing. The shapes are
those of OpenAI's Chat Completions where it has a shape, because chat templates and engines take them as they are.

An engine answers with events, in this order:

    Started            once: the prompt ids, what sampling was applied, which policy version is serving
    Delta*             each: token ids and their log-probs, and the text or tool-call pieces they made visible
    Finished           once: why it stopped

A `Delta` may have ids and no text (a parser holds text back) or text and no ids (an engine that hides them); capture
counts both. An engine that fails raises a `RequestError` instead of inventing a `Finished`.
"""

from typing import Any, Literal, TypeAlias

import msgspec

from rolltape.tokens import IntArray

Json: TypeAlias = dict[str, Any]
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]

DISTRIBUTION_FIELDS = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "typical_p", "top_n_sigma", "top_a", "tfs",
        "frequency_penalty", "presence_penalty", "repetition_penalty", "repeat_penalty", "length_penalty",
        "logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "ignore_eos",
        "mirostat", "mirostat_tau", "mirostat_eta", "xtc_probability", "xtc_threshold",
        "dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base", "dry_allowed_length",
        "use_beam_search", "samplers", "logits_processors",
    }
)  # fmt: skip
"""Request fields that change which distribution a token is drawn from."""

SAMPLING_FIELDS = DISTRIBUTION_FIELDS | {"max_tokens", "stop", "seed"}
"""All request fields that belong to `ChatRequest.sampling`."""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool call of an assistant turn. `arguments` is the exact text that was sampled or sent, JSON or not."""

    id: str
    name: str
    arguments: str
    extra: Json = {}


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `content` keeps the form it came in: a string, a list of parts, or None.

    A part is a dict in OpenAI's form (`{"type": "text", "text": ...}`, `{"type": "image_url", ...}`).
    `reasoning` is the thinking that came before the content, None when the message has no such field. `extra` are
    fields that an engine may know; `aside` is what only the dialect knows: kept with the request, told to no engine.
    """

    role: Role
    content: str | tuple[Json, ...] | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    extra: Json = {}
    aside: Json = {}

    def text(self) -> str:
        """The text of the content, parts joined; other parts contribute nothing."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.get("text", "") for part in self.content if part.get("type") == "text")

    def to_openai(self) -> Json:
        """The message as an OpenAI-shaped engine takes it, unknown fields included."""
        content = list(self.content) if isinstance(self.content, tuple) else self.content
        body: Json = {"role": self.role, "content": content, **self.extra}
        if self.reasoning is not None:
            body.setdefault("reasoning_content", self.reasoning)
        if self.tool_calls:
            body["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                    **call.extra,
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            body["tool_call_id"] = self.tool_call_id
        return body


class ChatRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a harness asked for.

    `sampling` holds the fields of `SAMPLING_FIELDS` that it sent (absent = not sent); `tools` are OpenAI tool objects
    as sent; `extra` is every other field, forwarded to engines that may know it; `aside` is what only the dialect
    knows, kept in the record and told to no engine.
    `prompt` is a raw prompt in place of messages, as text or as token ids: the legacy completions protocol.
    `messages` comes last, so that two successive requests of a chain, written as JSON, share the longest prefix.
    """

    model: str
    sampling: Json = {}
    tools: tuple[Json, ...] = ()
    tool_choice: Any = None
    response_format: Json | None = None
    stream: bool = False
    stream_usage: bool = False
    want_log_probs: bool = False
    extra: Json = {}
    aside: Json = {}
    prompt: str | tuple[int, ...] | None = None
    messages: tuple[Message, ...] = ()


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token counts of one call. `cached_tokens` of the prompt were not computed anew; None = the engine did not say.

    `reasoning_tokens` came with the deltas that showed reasoning; None = not counted.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole answer, ready to be encoded. `id` is unique and recorded, so that a transcript finds its call.

    The ids and log-probs are for callers that asked for them; `prompt_token_ids` is None when they are not known.
    `stop_sequence` is as in `Finished`.
    """

    id: str
    model: str
    created: int
    message: Message
    finish_reason: FinishReason
    usage: Usage
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float | None, ...] = ()
    token_texts: tuple[str, ...] = ()
    prompt_token_ids: IntArray | None = None
    stop_sequence: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of tool call number `index`. The first piece of each call carries `id` and `name`, later ones None."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Started(msgspec.Struct, frozen=True):
    """The engine took the request. `prompt_token_ids` is None when the engine does not tell them (a marked entry).

    `sampling_applied` is what steers this generation in the end, engine defaults and clamps included.
    `log_prob_kind`: raw (of the model's own distribution), temperature_scaled, grammar_masked or unknown.
    """

    prompt_token_ids: IntArray | None
    sampling_applied: Json
    log_prob_kind: str = "raw"
    policy_version: str | None = None


class Delta(msgspec.Struct, frozen=True):
    """Newly sampled tokens and what they made visible. `log_probs` has one value a token; None = the engine gave none.

    `token_texts` are the engine's own strings for the ids where it gives them, else ().
    """

    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float | None, ...] = ()
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_texts: tuple[str, ...] = ()


class Finished(msgspec.Struct, frozen=True):
    """Generation ended by itself. `completion_tokens` is the engine's own count, None if it gives none.

    `policy_spans` are (start, end, version) over the generation where the engine reports them, else ().
    `faults` are what the engine itself knows to be wrong with its recording, worded as `record.Fault`.
    `stop_sequence` is the string of `stop` that ended it, None when another thing did or the engine does not say.
    """

    finish_reason: FinishReason
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    policy_version: str | None = None
    policy_spans: tuple[tuple[int, int, str], ...] = ()
    faults: tuple[str, ...] = ()
    stop_sequence: str | None = None


EngineEvent: TypeAlias = Started | Delta | Finished


def pin_sampling(asked: Json, overrides: Json) -> Json:
    """`asked` with `overrides` on top. With a pin set, whatever else would change the distribution is removed.

    Trainers recompute log-probs for the pinned distribution only: one forgotten penalty makes a rollout incomparable.
    """
    if not overrides:
        return dict(asked)
    kept = {name: value for name, value in asked.items() if name not in DISTRIBUTION_FIELDS}
    return kept | overrides
