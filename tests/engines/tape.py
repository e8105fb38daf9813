"""An engine's events as the gateway records them."""

from collections.abc import Iterable

from rolltape.capture import CallIdentity, ModelCall
from rolltape.chat import ChatRequest, EngineEvent
from rolltape.record import TokenEntry


def machine() -> ModelCall:
    return ModelCall(
        CallIdentity(
            rollout_id="R",
            model_call_id="c",
            response_id="r",
            protocol="p",
            engine="e",
            model="m",
            request=ChatRequest("m"),
            request_digest="sha256:",
        )
    )


def entry(events: Iterable[EngineEvent]) -> TokenEntry:
    call = machine()
    for event in events:
        call.feed(event, 0.0)
    return call.completed(0.0, policy_version_end=None)
