"""One model call as a state machine: engine events in, one `TokenEntry` out. No I/O, no clock.

The machine keeps what the engine said and judges it once, at the end. It never repairs: a doubt becomes a named fault.

    open ──Started──> running ──Delta*──> running ──Finished──> ended     -> entry(completed)
      └──────────────────┴── the engine failed, refused, or the client left -> entry(failed | refused | cancelled)
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

import msgspec

from rolltape.chat import (
    ChatRequest,
    Delta,
    EngineEvent,
    Finished,
    FinishReason,
    Message,
    Reply,
    Started,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from rolltape.errors import EntryError
from rolltape.media import media_references
from rolltape.record import CONTINUATION, NOT_THE_POLICY, Fault, LogProbKind, Outcome, TokenEntry
from rolltape.tokens import FloatArray, IntArray, log_probs, token_ids

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIdentity:
    """What is known of a call before the engine sees it."""

    rollout_id: str
    model_call_id: str
    response_id: str
    protocol: str
    engine: str
    engine_name: str | None = None
    """Set where another engine than the policy's answers: what it samples is never trained."""
    model: str
    request: ChatRequest
    request_digest: str
    policy_version: str | None = None
    started_at: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None
    kind_evidence: str | None = None
    keep_texts: bool = True


@dataclass(slots=True)
class _ToolCallText:
    """A tool call as it grows."""

    id: str
    name: str
    arguments: list[str]


class ModelCall:
    """Collects one call. Feed it every engine event, then ask for exactly one entry."""

    def __init__(self, identity: CallIdentity) -> None:
        self.identity = identity
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.first_token_at: float | None = None
        self.continuation: str | None = None
        """How the prompt came about where recorded ids were to be gone on from; None = they were not."""
        self._ids: list[int] = []
        self._log_probs: list[float | None] = []
        self._token_texts: list[str] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_tokens = 0
        self._tool_calls: list[_ToolCallText] = []
        self._tool_call_at: dict[int, _ToolCallText] = {}

    def feed(self, event: EngineEvent, now: float) -> None:
        """Take one event; `now` in epoch seconds."""
        match event:
            case Started():
                self.started = event
            case Delta():
                self._feed_delta(event, now)
            case Finished():
                self.finished = event
            case _:
                assert_never(event)

    def _feed_delta(self, delta: Delta, now: float) -> None:
        if self.first_token_at is None and (delta.token_ids or delta.text or delta.reasoning or delta.tool_calls):
            self.first_token_at = now
        self._ids.extend(delta.token_ids)
        self._log_probs.extend(delta.log_probs)
        self._token_texts.extend(delta.token_texts)
        if delta.text:
            self._text.append(delta.text)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
            self._reasoning_tokens += len(delta.token_ids)
        for piece in delta.tool_calls:
            self._feed_tool_call(piece)

    def _feed_tool_call(self, piece: ToolCallDelta) -> None:
        """A new id starts a new call, whatever its index: some engines number all of them 0."""
        call = self._tool_call_at.get(piece.index)
        if call is None or (piece.id and piece.id != call.id):
            call = self._tool_call_at[piece.index] = _ToolCallText(piece.id or "", piece.name or "", [])
            self._tool_calls.append(call)
        call.arguments.append(piece.arguments)

    @property
    def sampled(self) -> int:
        """How many ids have been recorded so far."""
        return len(self._ids)

    def message(self) -> Message:
        """The assistant turn as far as it has come."""
        text = "".join(self._text)
        calls = tuple(ToolCall(call.id, call.name, "".join(call.arguments)) for call in self._tool_calls)
        return Message(
            role="assistant",
            content=text if text or not calls else None,
            reasoning="".join(self._reasoning) if self._reasoning else None,
            tool_calls=calls,
        )

    def reply(self, created: int) -> Reply:
        """The whole reply. Only after `Finished`."""
        assert self.finished is not None, "a reply needs the engine's own end"
        return Reply(
            id=self.identity.response_id,
            model=self.identity.request.model,
            created=created,
            message=self.message(),
            finish_reason=self.finished.finish_reason,
            usage=self.usage(),
            token_ids=tuple(self._ids),
            log_probs=tuple(self._log_probs),
            token_texts=tuple(self._token_texts),
            prompt_token_ids=self.started.prompt_token_ids if self.started else None,
            stop_sequence=self.finished.stop_sequence,
        )

    def usage(self) -> Usage:
        """Real counts: harnesses decide on compaction by them."""
        prompt = self.started.prompt_token_ids if self.started else None
        counted = self.finished.completion_tokens if self.finished else None
        return Usage(
            prompt_tokens=len(prompt) if prompt is not None else 0,
            completion_tokens=counted if counted is not None else len(self._ids),
            cached_tokens=self.finished.cached_tokens if self.finished else None,
            reasoning_tokens=self._reasoning_tokens,
        )

    def completed(self, now: float, *, policy_version_end: str | None) -> TokenEntry:
        """The entry of a call that the engine ended by itself; marked if anything about it is in doubt."""
        assert self.finished is not None, "completed without the engine's own end"
        return self._entry(Outcome.COMPLETED, now, None, policy_version_end, self.finished.finish_reason)

    def ended(self, outcome: Outcome, now: float, error: str, *, policy_version_end: str | None) -> TokenEntry:
        """The entry of a call that was refused, failed or cancelled. What had been sampled stays as evidence."""
        return self._entry(outcome, now, error, policy_version_end, None)

    def _entry(
        self,
        outcome: Outcome,
        now: float,
        error: str | None,
        policy_version_end: str | None,
        finish_reason: FinishReason | None,
    ) -> TokenEntry:
        who, started = self.identity, self.started
        finished = self.finished
        prompt, generated, probs, unusable = self._arrays()
        return TokenEntry(
            rollout_id=who.rollout_id,
            model_call_id=who.model_call_id,
            prompt_token_ids=prompt,
            generation_token_ids=generated,
            generation_log_probs=probs,
            log_prob_kind=started.log_prob_kind if started else LogProbKind.UNKNOWN,
            finish_reason=finish_reason,
            outcome=outcome,
            faults=(*self._faults(outcome), *unusable),
            error=error,
            created_at=now,
            started_at=who.started_at,
            first_token_at=self.first_token_at,
            model=who.model,
            model_asked=who.request.model,
            engine=who.engine,
            protocol=who.protocol,
            policy_version=(started and started.policy_version) or who.policy_version,
            policy_version_end=(finished and finished.policy_version) or policy_version_end,
            policy_spans=finished.policy_spans if finished else (),
            sampling_asked=who.request.sampling,
            sampling_applied=started.sampling_applied if started else {},
            response_id=who.response_id,
            kind=who.kind,
            kind_evidence=who.kind_evidence,
            headers=who.headers,
            request_digest=who.request_digest,
            output_items=tuple(self._output_items()) if who.keep_texts else (),
            request_text=msgspec.json.encode(who.request) if who.keep_texts else None,
            media=media_references(who.request),
            extra=self._extra(),
        )

    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if self.identity.engine_name is not None:
            extra[NOT_THE_POLICY] = self.identity.engine_name
        if self.continuation is not None:
            extra[CONTINUATION] = self.continuation
        return extra

    def _arrays(self) -> tuple[IntArray, IntArray, FloatArray, tuple[str, ...]]:
        """Prompt ids, sampled ids, log-probs; what no array can hold is left out whole and named."""
        told = self.started.prompt_token_ids if self.started else None
        faults: list[str] = []
        prompt = _array(token_ids, () if told is None else told, Fault.PROMPT_IDS_MISSING, faults)
        generated = _array(token_ids, self._ids, Fault.GENERATION_IDS_MISSING, faults)
        probs = _array(log_probs, self._log_probs, Fault.LOG_PROBS_MISSING, faults)
        return prompt, generated, probs, tuple(faults)

    def _faults(self, outcome: Outcome) -> tuple[str, ...]:
        """What only the events can show; the arrays speak for themselves in `TokenEntry`."""
        if outcome is not Outcome.COMPLETED:
            return ()
        assert self.finished is not None
        faults = list(self.finished.faults)
        counted = self.finished.completion_tokens
        visible = self._text or self._reasoning or self._tool_calls
        if not self._ids and (visible or counted):
            faults.append(Fault.GENERATION_IDS_MISSING)
        elif counted is not None and counted != len(self._ids):
            faults.append(f"{Fault.TOKEN_COUNT_MISMATCH}: recorded {len(self._ids)}, the engine counts {counted}")
        return tuple(str(fault) for fault in faults)

    def _output_items(self) -> list[dict[str, Any]]:
        """The turn as Responses items, in the order in which a Responses server gives them."""
        message, call_id = self.message(), self.identity.model_call_id
        items: list[dict[str, Any]] = []
        if message.reasoning:
            summary = [{"type": "summary_text", "text": message.reasoning}]
            items.append({"type": "reasoning", "id": f"rs_{call_id}", "summary": summary})
        if message.content:
            part = {"type": "output_text", "text": message.text(), "annotations": []}
            items.append(
                {
                    "type": "message",
                    "id": f"msg_{call_id}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [part],
                }
            )
        for call in message.tool_calls:
            items.append(
                {
                    "type": "function_call",
                    "id": f"fc_{call.id}",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": call.arguments,
                    "status": "completed",
                }
            )
        return items


def _array(make: Callable[[Any], T], values: Any, fault: Fault, faults: list[str]) -> T:
    """`make(values)`, or an empty one and the fault in words: an engine may send anything."""
    try:
        return make(values)
    except EntryError as error:
        faults.append(f"{fault}: {error.message}")
        return make(())


def request_digest(body: bytes) -> str:
    """`sha256:<hex>` of a request body, as it was before any decoding but decompression."""
    return f"sha256:{hashlib.sha256(body).hexdigest()}"
