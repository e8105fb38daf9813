"""Many rows as one sequence: each shared prefix once, with an index back to every row.

The rows are laid into a radix tree whose segments are then written in depth-first order, so that the ids of a subtree
are neighbours: token `q` may look at token `k` exactly if `k <= q < subtree_end[k]`. A position is the depth in the
tree, which is the position in the row.

A token has at most one owner here too. Two rows that sampled the same id after the same prefix (two rollouts of one
group often do) each own theirs, with an advantage of its own: there the tree forks, though the ids agree. Packing thus
never changes what a loss sums over, only how often a prefix is computed.

An image is the same placeholders whatever it shows: rows that were shown different ones share nothing.

Whether that pays is a question of cost, not of tokens: see `Saving`. Merged chains have most of the gain inside of one
rollout already; a group that shares a long prompt has more.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolltape import tokens
from rolltape.record import Row
from rolltape.tokens import FloatArray, IntArray, common_prefix

NOBODY = -1
START = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """Ids start..end (end excluded) of the packed sequence. `parent` is the segment whose last id its first follows,
    None at the start of a row; `position` is the depth of its first id."""

    start: int
    end: int
    parent: int | None
    position: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """`rows` in one sequence of N ids. Arrays are read-only."""

    rows: tuple[Row, ...]
    token_ids: IntArray
    """(N,)"""
    position_ids: IntArray
    """(N,) the place of each id in its row."""
    predecessors: IntArray
    """(N,) where the id before it is, `START` for the first id of a row: the logits there are for this one."""
    subtree_end: IntArray
    """(N,) the first place after all that follow this id."""
    owners: IntArray
    """(N,) index of the row whose loss holds this id, `NOBODY` for context."""
    log_probs: FloatArray
    """(N,) as recorded, NaN where nobody owns the id."""
    segments: tuple[Segment, ...]
    gather: tuple[IntArray, ...]
    """For each row (T,) the place of each of its ids: `values[gather[r]]` is the row's own view of any (N,) array."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def loss_mask(self) -> NDArray[np.int8]:
        """(N,) 1 where a row owns the id."""
        mask: NDArray[np.int8] = (self.owners != NOBODY).astype(np.int8)
        return mask

    def attention_mask(self) -> NDArray[np.bool_]:
        """(N, N) whether the id of the row may look at the one of the column. Quadratic: for short trees and tests."""
        at = np.arange(len(self))
        return (at[None, :] <= at[:, None]) & (at[:, None] < self.subtree_end[None, :])

    def ancestry(self, segment: int) -> list[Segment]:
        """The segments from the start of a row to this one, itself the last."""
        found: list[Segment] = []
        at: int | None = segment
        while at is not None:
            found.append(self.segments[at])
            at = self.segments[at].parent
        return found[::-1]

    def to_json(self) -> dict[str, Any]:
        """One row in the form of `Row.to_json`, and what it takes to attend over it and to get the single rows back."""
        return {
            "row_id": "+".join(sorted({row.rollout_id for row in self.rows})) + ":packed",
            "rollout_ids": sorted({row.rollout_id for row in self.rows}),
            "model_call_ids": list(dict.fromkeys(call for row in self.rows for call in row.model_call_ids)),
            "kind": "packed",
            "token_ids": self.token_ids.tolist(),
            "loss_mask": self.loss_mask.tolist(),
            "log_probs": tokens.json_log_probs(self.log_probs),
            "position_ids": self.position_ids.tolist(),
            "predecessors": self.predecessors.tolist(),
            "subtree_end": self.subtree_end.tolist(),
            "owners": self.owners.tolist(),
            "segments": [[one.start, one.end, one.parent, one.position] for one in self.segments],
            "packed_rows": [
                {
                    "row_id": row.row_id,
                    "rollout_id": row.rollout_id,
                    "model_call_ids": list(row.model_call_ids),
                    "kind": row.kind,
                    "reward": row.reward,
                    "weight": row.weight,
                    "spans": row.to_json()["spans"],
                    "gather": places.tolist(),
                }
                for row, places in zip(self.rows, self.gather, strict=True)
            ],
        }


@dataclass(slots=True)
class _Node:
    """A stretch of ids without a fork. `owners` has a row's index where that row owns the id."""

    ids: IntArray
    owners: NDArray[np.int32]
    depth: int
    parent: "_Node | None"
    children: dict[int, list["_Node"]] = field(default_factory=lambda: defaultdict(list))
    """By first id; several where the same id is sampled by several rows."""
    ends: list[int] = field(default_factory=list)
    """Rows whose last id lies in here."""

    def in_order(self) -> Iterator["_Node"]:
        for same in self.children.values():
            yield from same


def pack(rows: Sequence[Row]) -> PackedRows:
    """`rows`, of one rollout or of several, as one sequence. Their order is kept among the branches of a fork."""
    roots: dict[str, _Node] = {}
    for index, row in enumerate(rows):
        _lay(roots.setdefault(repr(row.media), _root()), row, index, rows)
    return _written([*roots.values()], tuple(rows))


def _root() -> _Node:
    return _Node(np.empty(0, np.int32), np.empty(0, np.int32), 0, None)


def _lay(root: _Node, row: Row, index: int, rows: Sequence[Row]) -> None:
    node, at, length = root, 0, len(row.token_ids)
    while at < length:
        branches = node.children[int(row.token_ids[at])]
        fits = [(_fit(branch, row, at), branch) for branch in branches]
        shared, branch = max(fits, key=lambda fit: fit[0], default=(0, None))
        if branch is None or not shared:
            fresh = _Node(row.token_ids[at:], np.full(length - at, NOBODY, np.int32), at, node)
            branches.append(fresh)
            shared, branch = length - at, fresh
        if shared < len(branch.ids):
            _split(branch, shared, rows)
        branch.owners[row.loss_mask[at : at + shared] == 1] = index
        node, at = branch, at + shared
    if node is not root:
        node.ends.append(index)


def _fit(node: _Node, row: Row, at: int) -> int:
    """How many ids of `node` can stand for those of `row` from `at` on: as long as they agree, and do not both have
    an owner."""
    shared = common_prefix(node.ids, row.token_ids[at:])
    both = (node.owners[:shared] != NOBODY) & (row.loss_mask[at : at + shared] == 1)
    return int(both.argmax()) if both.any() else shared


def _split(node: _Node, at: int, rows: Sequence[Row]) -> None:
    """Cut `node` after `at` ids; it keeps the first part."""
    rest = _Node(node.ids[at:], node.owners[at:], node.depth + at, node, node.children)
    for child in rest.in_order():
        child.parent = rest
    further = [index for index in node.ends if len(rows[index].token_ids) > rest.depth]
    rest.ends = further
    node.ids, node.owners = node.ids[:at], node.owners[:at].copy()
    node.ends = [index for index in node.ends if index not in further]
    node.children = defaultdict(list)
    node.children[int(rest.ids[0])].append(rest)


def _written(roots: Sequence[_Node], rows: tuple[Row, ...]) -> PackedRows:
    order = _preorder(roots)
    starts = dict(zip(map(id, order), np.cumsum([0, *(len(node.ids) for node in order)]).tolist(), strict=False))
    number = {id(node): index for index, node in enumerate(order)}
    segments = tuple(
        Segment(
            start=starts[id(node)],
            end=starts[id(node)] + len(node.ids),
            parent=number.get(id(node.parent)),
            position=node.depth,
        )
        for node in order
    )
    owners = _joined([node.owners for node in order])
    gather: list[IntArray] = [np.empty(0, np.int32)] * len(rows)
    for node in order:
        for index in node.ends:
            gather[index] = _places(node, starts)[: len(rows[index].token_ids)]
    return PackedRows(
        rows=rows,
        token_ids=_frozen(_joined([node.ids for node in order])),
        position_ids=_frozen(_joined([np.arange(s.position, s.position + len(s), dtype=np.int32) for s in segments])),
        predecessors=_frozen(_predecessors(segments)),
        subtree_end=_frozen(_subtree_ends(segments)),
        owners=_frozen(owners),
        log_probs=_frozen(_log_probs(owners, rows, gather)),
        segments=segments,
        gather=tuple(map(_frozen, gather)),
    )


def _preorder(roots: Sequence[_Node]) -> list[_Node]:
    """All but the roots, which hold no ids."""
    found: list[_Node] = []
    waiting = [node for root in roots for node in root.in_order()][::-1]
    while waiting:
        found.append(node := waiting.pop())
        waiting.extend([*node.in_order()][::-1])
    return found


def _places(node: _Node, starts: dict[int, int]) -> IntArray:
    """Where the ids from the start of a row to the end of `node` are."""
    runs = []
    at: _Node | None = node
    while at is not None and at.parent is not None:
        runs.append(np.arange(starts[id(at)], starts[id(at)] + len(at.ids), dtype=np.int32))
        at = at.parent
    return _joined(runs[::-1])


def _predecessors(segments: Sequence[Segment]) -> IntArray:
    before = np.arange(-1, (segments[-1].end if segments else 0) - 1, dtype=np.int32)
    for one in segments:
        before[one.start] = START if one.parent is None else segments[one.parent].end - 1
    return before


def _subtree_ends(segments: Sequence[Segment]) -> IntArray:
    ends = [one.end for one in segments]
    for index in range(len(segments) - 1, -1, -1):  # children come after their parent
        parent = segments[index].parent
        if parent is not None:
            ends[parent] = max(ends[parent], ends[index])
    return np.repeat(np.asarray(ends, np.int32), [len(one) for one in segments]).astype(np.int32)


def _log_probs(owners: NDArray[np.int32], rows: Sequence[Row], gather: Sequence[IntArray]) -> FloatArray:
    values = np.full(len(owners), np.nan, np.float32)
    for row, places in zip(rows, gather, strict=True):
        owned = row.loss_mask == 1
        values[places[owned]] = row.log_probs[owned]
    return values


def _joined(parts: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the cost of a forward pass depends on. `width` is heads times the size of one."""

    parameters: int
    layers: int
    width: int


@dataclass(frozen=True, slots=True)
class Saving:
    """What packing does to the work of one forward pass, in multiply-adds; a backward pass scales both alike.

    `gathered` counts the keys and values that branches have to collect from the segments before them, in ids.
    """

    row_tokens: int
    packed_tokens: int
    row_work: float
    packed_work: float
    gathered: int

    @property
    def pays(self) -> bool:
        """Whether to pack: by at least a tenth, since collecting keys and masking cost what no multiply-add shows."""
        return self.packed_work < 0.9 * self.row_work

    def to_json(self) -> dict[str, Any]:
        ratio = self.packed_work / self.row_work if self.row_work else 1.0
        saved = self.row_tokens - self.packed_tokens
        return {
            "row_tokens": self.row_tokens,
            "packed_tokens": self.packed_tokens,
            "tokens_saved": saved,
            "work_ratio": round(ratio, 4),
            "pays": self.pays,
        }


def saving(packed: PackedRows, shape: ModelShape) -> Saving:
    """The estimate for a model of `shape`, with attention computed segment by segment."""
    token, pair = shape.parameters, 2 * shape.layers * shape.width
    lengths = [len(row.token_ids) for row in packed.rows]
    branches = [one for one in packed.segments if one.parent is not None]
    gathered = sum(one.position + len(one) for one in branches)
    pairs = sum(len(one) * one.position + len(one) * (len(one) + 1) / 2 for one in packed.segments)
    masked = sum(len(one) * (len(one) - 1) / 2 for one in branches)  # computed, then masked away
    return Saving(
        row_tokens=sum(lengths),
        packed_tokens=len(packed),
        row_work=sum(n * token + pair * n * (n + 1) / 2 for n in lengths),
        packed_work=len(packed) * token + pair * (pairs + masked + gathered),
        gathered=gathered,
    )
