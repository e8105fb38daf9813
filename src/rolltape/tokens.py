"""Token arrays, their digests, and the exact prefix tree. Pure, and the lowest floor but the errors.

Ids are int32, log-probs float32: what engines compute with. A sequence's digest is SHA-256 over its little-endian
int32 bytes, so the digest of a longer sequence can be continued from that of its prefix without reading it again.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rolltape.errors import EntryError

IntArray: TypeAlias = NDArray[np.int32]
FloatArray: TypeAlias = NDArray[np.float32]
Key = TypeVar("Key", bound=Hashable)

ID_LIMIT = 2**31  # ids are int32; the largest vocabulary known has 2^18


def token_ids(values: Sequence[int] | NDArray[Any], name: str = "token ids") -> IntArray:
    """`values` as a read-only, one-dimensional int32 array; raises `EntryError` on anything that is no token id."""
    if isinstance(values, np.ndarray) and values.dtype == np.int32 and values.ndim == 1:
        if len(values) and int(values.min()) < 0:
            raise EntryError(f"{name} holds a negative id")
        return _read_only(values)
    if not isinstance(values, np.ndarray):
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
            raise EntryError(f"{name} must be a flat list of whole numbers")
        if any(type(v) is bool for v in values):
            raise EntryError(f"{name} holds a boolean")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise EntryError(f"{name} must be a flat list of whole numbers") from error
    if array.size == 0:
        return _read_only(np.empty(0, np.int32))
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise EntryError(f"{name} must be a flat list of whole numbers")
    if int(array.min()) < 0 or int(array.max()) >= ID_LIMIT:
        raise EntryError(f"{name} holds an id outside 0..{ID_LIMIT - 1}")
    return _read_only(array.astype(np.int32))


_NO_NUMBERS = frozenset({bool, np.bool_, str, bytes, np.str_})
"""What numpy would read as numbers all the same."""


def log_probs(values: Iterable[float | None] | NDArray[Any], name: str = "log-probs") -> FloatArray:
    """`values` as a read-only float32 array. None becomes NaN: an unknown log-prob must never read as 0 = certainty."""
    if isinstance(values, np.ndarray) and values.dtype == np.float32 and values.ndim == 1:
        return _read_only(values)
    try:
        given = list(values)
        with np.errstate(over="ignore"):  # too large for a float32 becomes infinite, which no loss may use
            array = np.array([np.nan if v is None else v for v in given], dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise EntryError(f"{name} must be a flat list of numbers or nulls") from error
    if array.ndim != 1 or not _NO_NUMBERS.isdisjoint(map(type, given)):
        raise EntryError(f"{name} must be a flat list of numbers or nulls")
    return _read_only(array)


def json_log_probs(values: FloatArray) -> list[float | None]:
    """The shortest decimals that read back as the same float32; null where the value is not finite."""
    texts = values.astype("U32")
    return [float(text) if ok else None for text, ok in zip(texts, np.isfinite(values), strict=True)]


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def common_prefix(a: IntArray, b: IntArray) -> int:
    """How many leading ids `a` and `b` share."""
    n = min(len(a), len(b))
    if n == 0 or _one_buffer(a, b):
        return n
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n


def _one_buffer(a: IntArray, b: IntArray) -> bool:
    """Whether two arrays that are not empty are views of one buffer from one place on: then nothing need be read."""
    aligned = a.strides == b.strides and a.flags.aligned and b.flags.aligned
    return aligned and np.may_share_memory(a[:1], b[:1])  # ids that lie aligned share their bytes whole, or not at all


def digest(*parts: IntArray) -> str:
    """`sha256:<hex>` of the concatenated ids."""
    state = hashlib.sha256()
    for part in parts:
        state.update(np.ascontiguousarray(part, dtype="<i4").data)
    return f"sha256:{state.hexdigest()}"


@dataclass(frozen=True, slots=True)
class PrefixMatch(Generic[Key]):
    """What a tree knows about one sequence.

    `whole`/`whole_length`: the longest inserted sequence that is an exact prefix of it (None, 0 if there is none).
    `nearest`/`depth`: a sequence that shares the most leading ids, and how many (None, 0 if it shares nothing).
    """

    whole: Key | None
    whole_length: int
    nearest: Key | None
    depth: int


@dataclass(slots=True)
class _Node(Generic[Key]):
    """Ids `start:end` of every sequence below; `ids` are just those. `ends` are the keys whose sequence stops here."""

    start: int
    ids: IntArray
    through: Key
    ends: list[Key] = field(default_factory=list)
    children: "dict[int, _Node[Key]]" = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class PrefixTree(Generic[Key]):
    """A radix tree of token sequences: exact prefixes in one walk, memory linear in the *distinct* ids.

    Nodes keep views of the arrays given to `add`. The plain form: a walk takes a step a turn, so what must stay fast on
    long chains has a form of its own, and is tested against this one.
    """

    def __init__(self) -> None:
        self._root: _Node[Any] = _Node(0, np.empty(0, np.int32), None)
        self.distinct_ids = 0

    def add(self, sequence: IntArray, key: Key) -> None:
        """Insert `sequence` under `key`. Equal sequences may be added under several keys."""
        node, at = self._root, 0
        while at < len(sequence):
            child = node.children.get(int(sequence[at]))
            if child is None:
                ids = sequence[at:]
                self.distinct_ids += len(ids)
                node.children[int(sequence[at])] = _Node(at, ids, key, ends=[key])
                return
            shared = common_prefix(child.ids, sequence[at:])
            if shared < len(child.ids):
                child = self._split(node, child, shared)
            node, at = child, at + shared
        node.ends.append(key)

    def match(self, sequence: IntArray) -> PrefixMatch[Key]:
        """Where `sequence` runs in the tree."""
        node: _Node[Any] = self._root
        at, whole, whole_length = 0, None, 0
        nearest: Any = None
        while at < len(sequence):
            child = node.children.get(int(sequence[at]))
            if child is None:
                break
            shared = common_prefix(child.ids, sequence[at:])
            nearest, at = child.through, at + shared
            if shared < len(child.ids):
                break
            node = child
            if node.ends:
                whole, whole_length = node.ends[0], node.end
        return PrefixMatch(whole, whole_length, nearest, at)

    @staticmethod
    def _split(parent: "_Node[Key]", child: "_Node[Key]", shared: int) -> "_Node[Key]":
        upper = _Node(child.start, child.ids[:shared], child.through)
        lower = _Node(child.start + shared, child.ids[shared:], child.through, child.ends, child.children)
        upper.children[int(lower.ids[0])] = lower
        parent.children[int(upper.ids[0])] = upper
        return upper
