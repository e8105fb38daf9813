"""Snapshots out of a queue: the rows of a rollout's entries, each where it stands, and why something is missing."""

from collections import OrderedDict
from collections.abc import Sequence

from rolltape.errors import DamagedError
from rolltape.record import Delivery, TokenCaptureSnapshot, TokenEntry
from rolltape.store.contract import LineageMatch, RolloutState
from rolltape.store.transferqueue import payload
from rolltape.store.transferqueue.events import Members, View, parsed
from rolltape.store.transferqueue.queue import Queue
from rolltape.tokens import IntArray, PrefixTree

UNKNOWN = "this queue has never heard of the rollout: it made no call, or a queue before this one was lost"
_ROLLOUTS = 64
"""How many rollouts' sequences are remembered for `resolve`."""


class Reader:
    """Reads rows; remembers the sequences of the rollouts that were resolved last."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._sequences: OrderedDict[str, dict[str, IntArray]] = OrderedDict()

    async def snapshot(self, place: str, view: View, members: Members) -> TokenCaptureSnapshot:
        """What the view says, with its entries."""
        keys = [held.data for held in view.entries.values()]
        rows = await self._queue.rows(place, keys, payload.ENTRY_FIELDS)
        read: dict[str, TokenEntry] = {}
        reasons = view.reasons()
        for call_id, held in view.entries.items():
            if held.data not in rows:
                reasons.append(f"{call_id}: damaged: the queue lost its data")
                continue
            try:
                read[call_id] = payload.entry_of(view.rollout_id, call_id, held.digest, rows[held.data])
            except DamagedError as error:
                reasons.append(f"{call_id}: damaged: {error.message}")
        reasons += _doubts(view, members)
        known = await self.sequences(place, view, read)
        return TokenCaptureSnapshot(
            rollout_id=view.rollout_id,
            entries=tuple(_placed(view, known, read)),
            incomplete=bool(reasons),
            snapshot_id=view.snapshot_id,
            version=view.version,
            incomplete_reasons=tuple(reasons),
            outcome=view.told(),
        )

    async def resolve(self, place: str, view: View, prompt: IntArray) -> LineageMatch | None:
        """The call whose whole sequence is the longest exact prefix of `prompt`."""
        tree: PrefixTree[str] = PrefixTree()
        for call_id, sequence in (await self.sequences(place, view, {})).items():
            tree.add(sequence, call_id)
        match = tree.match(prompt)
        return None if match.whole is None else LineageMatch(match.whole, match.whole_length)

    async def sequences(self, place: str, view: View, read: dict[str, TokenEntry]) -> dict[str, IntArray]:
        """The sequence of every call that has one, in the order in which they came."""
        known = self._sequences.setdefault(place, {})
        self._sequences.move_to_end(place)
        if len(self._sequences) > _ROLLOUTS:
            self._sequences.popitem(last=False)
        wanted = view.sequences
        for call_id, entry in read.items():
            if wanted[call_id] not in known:
                known[wanted[call_id]] = entry.sequence
        lacking = [data for data in wanted.values() if data not in known]
        for kind, fields in (("data", payload.ENTRY_FIELDS[:2]), ("ids", payload.SEQUENCE_FIELDS)):
            keys = [data for data in lacking if parsed(data)[0] == kind]
            rows = await self._queue.rows(place, keys, fields)
            known.update({data: payload.sequence_of(cells) for data, cells in rows.items()})
        return {call_id: known[data] for call_id, data in wanted.items() if data in known}


def _doubts(view: View, members: Members) -> list[str]:
    """Why this queue may not hold all that was ever put."""
    if not view.known:
        return [UNKNOWN]
    if view.born_here:
        return []
    return [f"the journal {name} has not given back what it holds" for name in members.missing]


def _placed(view: View, known: dict[str, IntArray], read: dict[str, TokenEntry]) -> Sequence[TokenEntry]:
    """The entries with their step, parent and common prefix, each from what came before it."""
    tree: PrefixTree[str] = PrefixTree()
    placed: list[TokenEntry] = []
    added: set[str] = set()
    for call_id in (*view.sequences, *(call_id for call_id in view.entries if call_id not in view.sequences)):
        entry = read.get(call_id)
        if entry is not None:
            match = tree.match(entry.prompt_token_ids)
            placed.append(
                entry.with_(
                    step_index=view.entries[call_id].step,
                    parent_call_id=match.whole if entry.parent_call_id is None else entry.parent_call_id,
                    common_prefix_len=match.depth if entry.common_prefix_len is None else entry.common_prefix_len,
                    delivery=Delivery(view.deliveries.get(call_id, entry.delivery)),
                )
            )
        if call_id in known and call_id not in added:
            tree.add(known[call_id], call_id)
            added.add(call_id)
    return placed


def state_of(view: View) -> RolloutState:
    """One line of a listing."""
    told = view.told()
    frozen = view.frozen_at is not None
    return RolloutState(
        rollout_id=view.rollout_id,
        created_at=view.created_at,
        updated_at=view.updated_at,
        n_entries=view.n_entries,
        n_open_calls=len(view.intents),
        generated_tokens=view.generated_tokens,
        frozen=frozen,
        incomplete=bool(view.marks or (frozen and view.intents)),
        version=view.version,
        snapshot_id=view.snapshot_id if frozen else None,
        retired_at=view.retired_at,
        reward=told.get("reward"),
        ending=told.get("ending"),
        labels=told.get("labels", {}),
    )
