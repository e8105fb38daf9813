"""Gym's `LineageResolver` over our store: which recorded call a request continues, by Gym's own matcher.

Nothing is kept between requests: what the store holds of the rollout is read, Gym's fingerprints are indexed, the match
is taken. So every process sees what any other has put, and there is no cache that could be stale.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rolltape.integrations.nemo_gym import convert
from rolltape.integrations.nemo_gym.endpoints import gym, opened
from rolltape.record import TokenEntry


class RolltapeLineage:
    """Gym's `lineage_store`, over the directory that `RolltapeSink` writes to. Needs Gym."""

    def __init__(self, dir: str | Path) -> None:
        self._lineage, self._protocols = gym("lineage"), gym("protocols")
        self._defaults = {name: field.default for name, field in gym("records").TokenEntry.model_fields.items()}
        self._store = opened(dir)

    async def resolve(self, rollout_id: str, request_items: list[dict[str, Any]]) -> Any:
        """Gym's `LineageResolution`: a root, one proven parent with its whole sequence, or unresolved and why."""
        entries = await self._entries(rollout_id)
        return await asyncio.to_thread(self._resolved, entries, request_items)

    def is_process_shared(self) -> bool:
        """True: every worker of this machine reads the same store."""
        return True

    async def close(self) -> None:
        """Idempotent."""
        await self._store.close()

    async def _entries(self, rollout_id: str) -> tuple[TokenEntry, ...]:
        state = await self._store.rollout(rollout_id)
        if state is None or state.retired_at is not None:
            return ()
        snapshot = await self._store.read(rollout_id)
        return () if snapshot is None else snapshot.entries

    def _resolved(self, entries: tuple[TokenEntry, ...], request_items: list[dict[str, Any]]) -> Any:
        index = self._lineage.RolloutLineage()
        for entry in entries:
            if (fields := convert.fields_of(entry)) is not None:
                index.add_entry(self._bare(entry, fields), store_tokens=False)
        status, node, reason = index.resolve_node(request_items)
        if node is None:
            return self._protocols.LineageResolution(status, reason=reason)
        parent = next(entry for entry in entries if entry.model_call_id == node.call_id)
        match = self._protocols.LineageMatch(
            model_call_id=node.call_id, cumulative_token_ids=tuple(parent.sequence.tolist()), digest=node.digest
        )
        return self._protocols.LineageResolution(status, match=match)

    def _bare(self, entry: TokenEntry, fields: Mapping[str, Any]) -> SimpleNamespace:
        """What Gym's index looks at. An object of Gym's own class would cost more than all the rest of a request."""
        return SimpleNamespace(
            **self._defaults | dict(fields) | {"model_call_id": entry.model_call_id, "cum_len": entry.length}
        )
