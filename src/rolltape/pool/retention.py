"""What a pool lets go of: by age, by size, by state. Tombstones hide it; compaction removes it from the disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rolltape.errors import ConfigError
from rolltape.pool.sets import condition

State: TypeAlias = Literal["masked", "excluded", "filtered", "unusable"]
STATES: dict[str, str] = {
    "masked": "masked",
    "excluded": "excluded",
    "filtered": "len(filtered) > 0",
    "unusable": "not usable",
}


@dataclass(frozen=True, slots=True)
class Retained:
    """Rollouts that were let go, each with the reason, by uid; and the record of it, None where nothing was."""

    gone: dict[str, str]
    lineage: str | None
    dry_run: bool


def outlived(age: float | None, size: int | None, state: str | None, where: str | None, now: float) -> str:
    """The SQL for (uid, reason) of what goes: everything that is too old, or in a state, and the oldest over a size.

    Age counts from when it was added. Size is in bytes of rows, a rollout's share of its part by its tokens.
    """
    if age is None and size is None and state is None:
        raise ConfigError("nothing says what to let go", hint="give an age, a size or a state")
    if state is not None and state not in STATES:
        raise ConfigError(f"no state is named {state!r}; there are: {', '.join(STATES)}")
    cases = []
    if state is not None:
        cases.append(f"when {STATES[state]} then 'state: {state}'")
    if age is not None:
        cases.append(f"when added_at <= {now - age!r} then 'age: older than {age:g} s'")
    if size is not None:
        cases.append(f"when newer_bytes > {int(size)} then 'size: more than {int(size)} bytes'")
    sized = (
        "select r.*, sum(b.bytes * r.tokens / greatest(b.part_tokens, 1)) over (order by added_at desc, uid "
        "rows between unbounded preceding and current row) as newer_bytes "
        "from rollouts r join part_bytes b using (part)"
    )
    judged = f"select uid, case {' '.join(cases)} end as reason from ({sized}) where {condition(where)}"
    return f"select uid, reason from ({judged}) where reason is not null order by uid"


def tombstones(gone: dict[str, str], now: float) -> dict[str, Sequence[object]]:
    return {"uid": list(gone), "reason": list(gone.values()), "gone_at": [now] * len(gone)}
