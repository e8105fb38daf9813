"""Two training sets of the same evidence: which tokens and rows one has that the other has not. Pure.

A training set is its rows as JSON, from `rolltape rebuild --json` or `rolltape export`. A token is a place in what a
call sampled, so it is the same token whatever row holds it; its owner is the row whose loss does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

Token: TypeAlias = tuple[str, str, int]
"""(rollout, call, place in what it sampled)."""
RowId: TypeAlias = tuple[str, str]
"""(rollout, row)."""
RowJson: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """What the second set has more, less or otherwise than the first.

    Rows are the same where their ids are; a changed one has other tokens or another loss. `moved` are tokens that
    another row owns; `reweighed` rows are otherwise the same and count another weight or reward.
    """

    rows_gained: tuple[RowId, ...]
    rows_lost: tuple[RowId, ...]
    rows_changed: tuple[RowId, ...]
    rows_reweighed: tuple[RowId, ...]
    tokens_gained: int
    tokens_lost: int
    tokens_moved: int
    tokens_kept: int
    by_rollout: Mapping[str, Mapping[str, int]]
    """Rollout -> its tokens gained, lost and moved, where there are any."""

    @property
    def same(self) -> bool:
        rows = (self.rows_gained, self.rows_lost, self.rows_changed, self.rows_reweighed)
        return not any(rows) and not (self.tokens_gained or self.tokens_lost or self.tokens_moved)

    def to_json(self) -> dict[str, Any]:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        listed = {name: [list(row) for row in value] for name, value in values.items() if name.startswith("rows_")}
        return values | listed | {"same": self.same}


def compare(before: Iterable[RowJson], after: Iterable[RowJson]) -> Difference:
    """From the set `before` to the set `after`; their order means nothing."""
    was, now = ({_id(row): row for row in rows} for rows in (before, after))
    owner_was, owner_now = _owners(was), _owners(now)
    gained, lost = owner_now.keys() - owner_was.keys(), owner_was.keys() - owner_now.keys()
    moved = {token for token in owner_was.keys() & owner_now.keys() if owner_was[token] != owner_now[token]}
    both = sorted(was.keys() & now.keys())
    changed = [row for row in both if _content(was[row]) != _content(now[row])]
    counted = [row for row in both if row not in set(changed) and _counts(was[row]) != _counts(now[row])]
    return Difference(
        rows_gained=tuple(sorted(now.keys() - was.keys())),
        rows_lost=tuple(sorted(was.keys() - now.keys())),
        rows_changed=tuple(changed),
        rows_reweighed=tuple(counted),
        tokens_gained=len(gained),
        tokens_lost=len(lost),
        tokens_moved=len(moved),
        tokens_kept=len(owner_was.keys() & owner_now.keys()) - len(moved),
        by_rollout=_by_rollout({"gained": gained, "lost": lost, "moved": moved}),
    )


def _id(row: RowJson) -> RowId:
    return row["rollout_id"], row["row_id"]


def _owners(rows: Mapping[RowId, RowJson]) -> dict[Token, RowId]:
    owners: dict[Token, RowId] = {}
    for row_id, row in rows.items():
        for span in row["spans"]:
            if not span["owned"]:
                continue
            for at in range(span["start"], span["end"]):
                if row["loss_mask"][at]:
                    owners[row_id[0], span["model_call_id"], at - span["start"]] = row_id
    return owners


def _content(row: RowJson) -> tuple[Any, ...]:
    return row["token_ids"], row["loss_mask"], row["log_probs"]


def _counts(row: RowJson) -> tuple[Any, ...]:
    return row.get("weight"), row.get("reward"), [span.get("weight", 1.0) for span in row["spans"]]


def _by_rollout(tokens: Mapping[str, Iterable[Token]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for what, which in tokens.items():
        for rollout, count in sorted(Counter(rollout for rollout, _, _ in which).items()):
            found.setdefault(rollout, {})[what] = count
    return found
