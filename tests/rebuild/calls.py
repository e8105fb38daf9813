"""Calls in a few characters, for the tests of this folder."""

from collections.abc import Iterable, Sequence
from typing import Any

from rolltape.record import TokenCaptureSnapshot, TokenEntry


def call(name: str, prompt: Sequence[int], generation: Sequence[int], **more: Any) -> TokenEntry:
    """A completed call with the log-probs -0.1, -0.2, ... unless `more` says otherwise."""
    fields: dict[str, Any] = {"generation_log_probs": [-0.1 * (i + 1) for i in range(len(generation))]} | more
    return TokenEntry(
        rollout_id="r",
        model_call_id=name,
        prompt_token_ids=list(prompt),
        generation_token_ids=list(generation),
        **fields,
    )


def snapshot(*entries: TokenEntry | Iterable[TokenEntry], **more: Any) -> TokenCaptureSnapshot:
    flat = [e for one in entries for e in ([one] if isinstance(one, TokenEntry) else one)]
    fields: dict[str, Any] = {"incomplete": False, "snapshot_id": "s1", "version": 3} | more
    return TokenCaptureSnapshot("r", tuple(flat), **fields)
