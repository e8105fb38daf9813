"""Derived sets: which rollouts were drawn, in which order, and from what.

A draw depends on the seed and on the rollouts alone, never on how they are stored: each is ordered by a digest of its
uid and the seed. Drawn by a column (a group, a task), all of a value comes along or none: an advantage is relative to
the whole group.
"""

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from rolltape.errors import ConfigError, StoreError
from rolltape.pool.files import Files
from rolltape.pool.views import Listing, quoted

FOLDER = "lineage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What something came from. `state`: a digest of the parts that were read; the same parts give the same answer."""

    id: str
    kind: str
    """sample, filter, weight, reward, label or retain."""
    pool: str
    pool_id: str
    state: str
    parents: tuple[str, ...] = ()
    """Sets that it was drawn from."""
    where: str | None = None
    seed: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    count: int = 0
    """Rollouts in it."""
    at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"parents": list(self.parents), "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class Derived:
    """A set of rollouts of a pool, by uid, in the order in which they were drawn."""

    set_id: str
    uids: tuple[str, ...]
    lineage: Lineage


def descend(files: Files, listing: Listing, kind: str, **told: Any) -> Lineage:
    """Write down what something came from. Durable on return."""
    found = Lineage(
        id=f"{kind}-{uuid.uuid4().hex[:12]}",
        kind=kind,
        pool=files.uri,
        pool_id=files.pool_id,
        state=_state(listing),
        at=time.time(),
        **told,
    )
    files.write(f"{FOLDER}/{found.id}.json", msgspec.json.encode(found.to_json()))
    return found


def _state(listing: Listing) -> str:
    names = sorted(part.path for parts in listing.parts.values() for part in parts)
    return f"sha256:{hashlib.sha256(msgspec.json.encode(names)).hexdigest()}"


def lineage_of(files: Files, name: str) -> Lineage:
    """The record of `name`. Raises `StoreError` when there is none."""
    try:
        return msgspec.json.decode(files.read(f"{FOLDER}/{name}.json"), type=Lineage)
    except FileNotFoundError as error:
        raise StoreError(f"this pool has no set or batch of labels {name!r}") from error


def lineages(files: Files) -> list[Lineage]:
    """All there are, the oldest first."""
    names = [name.removesuffix(".json") for name in files.names(FOLDER)]
    return sorted((lineage_of(files, name) for name in names), key=lambda one: one.at)


def drawing(n: int, *, where: str | None, seed: int, by: str | None, each: int | None, within: str | None) -> str:
    """The SQL that draws: uids in their order. Filters come first: a sample is of what they leave."""
    if n < 1 or (each is not None and each < 1):
        raise ConfigError("a sample has at least one rollout")
    inside = f" semi join (select uid from sets where set_id = {quoted(within)}) using (uid)" if within else ""
    pool = f"select *, md5(uid || ':{seed}') as lot from rollouts{inside} where {condition(where)}"
    if by is None:
        return f"select uid from ({pool}) order by lot limit {n}"
    name = column(by)
    group = f"md5({name}::varchar || ':{seed}')"
    drawn = f"select distinct {name} as g, {group} as lot from ({pool}) where {name} is not null order by lot limit {n}"
    kept = f" qualify row_number() over (partition by {name} order by lot) <= {each}" if each else ""
    return f"select uid from ({pool}{kept}) p join ({drawn}) d on p.{name} = d.g order by d.lot, p.lot"


def condition(where: str | None) -> str:
    return f"({where})" if where else "true"


def column(name: str) -> str:
    """`name` as an SQL name. Raises `ConfigError` for what is none."""
    if not name.isidentifier():
        raise ConfigError(f"{name!r} is no column")
    return f'"{name}"'


def members(set_id: str, uids: Sequence[str]) -> dict[str, list[Any]]:
    return {"set_id": [set_id] * len(uids), "uid": list(uids), "position": list(range(len(uids)))}
