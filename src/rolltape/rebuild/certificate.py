"""The certificate of one rebuilt rollout: what was checked, what that comes to, and digests to check it by later. Pure.

Checks that a later reader can repeat from the store alone, a verdict with its reasons, and a chain of digests: prompt
-> call -> all calls in the order of their ids -> evidence (with the outcome and what is known to be lost) -> rows ->
certificate. Nothing in it depends on time, place or the order of entries. `docs/certificate.md` says what each check
means to whoever trains.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.rebuild import digests
from rolltape.rebuild.checks import Check, Checked, Verdict
from rolltape.rebuild.policy import KindPolicy
from rolltape.rebuild.terminal import Witnesses
from rolltape.record import TokenCaptureSnapshot

VERSION = 1
_RANK: Mapping[str, int] = {"masked": 0, "usable": 1, "exact": 2}


@dataclass(frozen=True, slots=True)
class Certificate:
    """`reasons` name what keeps the verdict from `exact`. `calls` and `rows` map ids to digests.

    `policy`, `delivery` and `witnesses` are what a rebuild needs, beside the evidence, to come to the same rows.
    """

    rollout_id: str
    snapshot_id: str
    version: int
    delivery: str
    policy: Mapping[str, Any]
    witnesses: Mapping[str, Any]
    verdict: Verdict
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]
    calls: Mapping[str, str]
    evidence: str
    rows: Mapping[str, str]

    @property
    def digest(self) -> str:
        return digests.of(self._body())

    def to_json(self) -> dict[str, Any]:
        return self._body() | {"digest": self.digest}

    def _body(self) -> dict[str, Any]:
        return {
            "certificate": VERSION,
            **{name: getattr(self, name) for name in self.__dataclass_fields__ if name != "checks"},
            "reasons": list(self.reasons),
            "checks": [check.to_json() for check in self.checks],
        }


def certify(
    snapshot: TokenCaptureSnapshot, checked: Checked, *, delivery: str, policy: KindPolicy, witnesses: Witnesses
) -> Certificate:
    """The certificate of what `snapshot` was rebuilt to."""
    calls = digests.calls(checked.recorded)
    return Certificate(
        rollout_id=snapshot.rollout_id,
        snapshot_id=snapshot.snapshot_id,
        version=snapshot.version,
        delivery=delivery,
        policy=policy.to_json(),
        witnesses={
            "call_id": witnesses.call_id,
            "response_id": witnesses.response_id,
            "reply_ids": list(witnesses.reply_ids),
        },
        verdict=checked.verdict,
        reasons=checked.reasons,
        checks=checked.checks,
        calls=calls,
        evidence=_evidence(snapshot, checked.recorded.conflicts, calls),
        rows={row.row_id: digests.row(row, calls) for row in checked.rows},
    )


def judge(checks: Sequence[Check], mask_reasons: Sequence[str]) -> tuple[Verdict, tuple[str, ...]]:
    """Masked where the rollout is; else exact where every check passes, those apart that nothing stored can decide."""
    doubts = tuple(f"{check.name}: {check.reason}" for check in checks if check.counts and check.verdict != "pass")
    if mask_reasons:
        return "masked", tuple(mask_reasons)
    return ("usable", doubts) if doubts else ("exact", ())


def meets(verdict: str | None, required: str | None) -> bool:
    """Whether a rollout with `verdict` (None = it has none) may be used where `required` is asked for (None = all)."""
    return required is None or _RANK.get(verdict or "", -1) >= _RANK[required]


def _evidence(snapshot: TokenCaptureSnapshot, conflicts: Sequence[str], calls: Mapping[str, str]) -> str:
    """Everything that a rebuild reads: the calls chained in the order of their ids, the outcome, what is lost."""
    chain = hashlib.sha256(b"rolltape-evidence-1")
    for call, digest in sorted(calls.items()):
        chain = hashlib.sha256(chain.digest() + digests.encode([call, digest]))
    lost = {"incomplete": snapshot.incomplete, "reasons": sorted(snapshot.incomplete_reasons)}
    told = digests.encode([snapshot.rollout_id, dict(snapshot.outcome), lost, list(conflicts)])
    return f"sha256:{hashlib.sha256(chain.digest() + told).hexdigest()}"


def differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[str]:
    """Where a certificate of today (`to_json`) and one from before part, in sentences; nothing where they agree."""
    if then.get("digest") != digests.of({name: value for name, value in then.items() if name != "digest"}):
        yield "the certificate does not match its own digest: it was changed"
    for what in ("calls", "rows"):
        ours, theirs = now[what], then.get(what) or {}
        yield from (f"{what[:-1]} {one} is missing" for one in theirs.keys() - ours.keys())
        yield from (f"{what[:-1]} {one} is new" for one in ours.keys() - theirs.keys())
        yield from (f"{what[:-1]} {one} has changed" for one in theirs.keys() & ours.keys() if ours[one] != theirs[one])
    if now["calls"] == then.get("calls") and now["evidence"] != then.get("evidence"):
        yield "the outcome, or what is known to be lost, has changed"
    for name in ("rollout_id", "version", "verdict"):
        if now[name] != then.get(name):
            yield f"{name} was {then.get(name)!r} and is {now[name]!r}"
