"""One frozen rollout -> its call tree, its training rows, and what became of every sampled token. Pure.

```
snapshot -> tree (exact prefixes) -> attempts (which retry counted) -> terminal call -> rows + ledger -> metrics
```

Only recorded ids make rows: nothing is tokenised, joined by text or filled in. The order of a snapshot's entries has no
influence on anything. What cannot be told apart masks the rollout and keeps its evidence.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rolltape.rebuild import attempts as attempts_
from rolltape.rebuild.breaks import named
from rolltape.rebuild.certificate import Certificate, certify, differences, judge, meets
from rolltape.rebuild.checks import Case, Check, Checked, Verdict, every_check, wrong_digests
from rolltape.rebuild.kinds import by_structure
from rolltape.rebuild.metrics import measure
from rolltape.rebuild.packed import PackedRows, pack
from rolltape.rebuild.policy import RETRY, KindPolicy, Sharing, Use, kind_of, read_policy
from rolltape.rebuild.rows import Dealt, DeliveryForm, Ownership, Status, deal
from rolltape.rebuild.terminal import Attribution, Witnesses, attribute, hear
from rolltape.rebuild.tree import CallTree, PrefixBreak, grow
from rolltape.record import Outcome, Row, TokenCaptureSnapshot, TokenEntry

__all__ = [
    "Attribution",
    "CallNode",
    "Certificate",
    "Check",
    "DeliveryForm",
    "KindPolicy",
    "Ownership",
    "PackedRows",
    "PrefixBreak",
    "Rebuilt",
    "Sharing",
    "Status",
    "Use",
    "Verdict",
    "Witnesses",
    "differences",
    "meets",
    "pack",
    "read_policy",
    "rebuild",
]

NO_RECORDS = "capture contains no token records"
NOTHING_TRAINABLE = "capture produced no trainable generated tokens"


@dataclass(frozen=True, slots=True)
class CallNode:
    """One call as `rolltape tree` draws it. `parent` and `children` are model call ids; calls off the tree have none.

    `reason` says why the call carries no loss, "" where it does. `owned_tokens` of its `sampled_tokens` do. The first
    `kept_tokens` of them are in a later prompt, in their place: how much of a reply that broke off its harness kept.
    """

    model_call_id: str
    parent: str | None
    children: tuple[str, ...]
    kind: str
    kind_evidence: str | None
    status: Status
    reason: str
    delivery: str
    prompt_tokens: int
    sampled_tokens: int
    owned_tokens: int
    kept_tokens: int
    row_id: str | None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"children": list(self.children)}


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """What a rollout comes to, in one delivery form.

    `mask_sample`: it must not be trained on, and `mask_reasons` says why; its rows are kept for people. `ledger` names
    for every sampled token the row that owns it or the reason why none does. `unresolved` are the groups of attempts
    that could not be told apart. `certify` keeps the evidence at hand for the certificate's digests.
    """

    rollout_id: str
    snapshot_id: str
    version: int
    delivery: DeliveryForm
    rows: tuple[Row, ...]
    mask_sample: bool
    mask_reasons: tuple[str, ...]
    metrics: Mapping[str, Any]
    prefix_breaks: tuple[PrefixBreak, ...]
    terminal: Attribution
    ledger: tuple[Ownership, ...]
    tree: tuple[CallNode, ...]
    unresolved: tuple[tuple[str, ...], ...]
    certify: Callable[[], Certificate] = field(repr=False)

    @property
    def certificate(self) -> Certificate:
        """How far all of it can be trusted, with digests of everything that it is made of."""
        return self.certify()

    @property
    def packed(self) -> PackedRows:
        """The rows as one sequence, whatever their form."""
        return pack(self.rows)

    @property
    def error(self) -> str | None:
        """Why there is nothing to train on; None if there is something."""
        error: str | None = self.metrics.get("error")
        return error

    def to_json(self) -> dict[str, Any]:
        return {
            "rollout_id": self.rollout_id,
            "snapshot_id": self.snapshot_id,
            "version": self.version,
            "delivery": self.delivery,
            "rows": self.delivered(),
            "mask_sample": self.mask_sample,
            "mask_reasons": list(self.mask_reasons),
            "metrics": dict(self.metrics),
            "prefix_breaks": [one.to_json() for one in self.prefix_breaks],
            "terminal": self.terminal.to_json(),
            "unresolved": [list(group) for group in self.unresolved],
            "ledger": [one.to_json() for one in self.ledger],
            "tree": [node.to_json() for node in self.tree],
            "certificate": self.certificate.to_json(),
        }

    def delivered(self) -> list[dict[str, Any]]:
        """The rows as JSON values; where they are packed, the one that holds them all."""
        if self.delivery == "packed" and self.rows:
            return [self.packed.to_json()]
        return [row.to_json() for row in self.rows]


def rebuild(
    snapshot: TokenCaptureSnapshot,
    *,
    delivery: DeliveryForm = "forest",
    terminal: Witnesses | None = None,
    policy: KindPolicy | None = None,
    agreement: bool | None = None,
) -> Rebuilt:
    """The rows of `snapshot` in the form `delivery`; `terminal` is what the harness's result says of its last call.

    `agreement`: whether a trainer's log-probs agree with the recorded ones; None = nobody has asked one. Faulty
    evidence never raises: it is left out, named and counted, and masks where it must.
    """
    policy, witnesses = policy or KindPolicy(), terminal or Witnesses()
    recorded = grow(snapshot.entries, policy)
    tree = named(_classified(snapshot, recorded, policy))
    heard = hear(witnesses, tree)
    attempts = attempts_.settle(tree, heard.chosen, policy)
    attribution = attribute(heard, tree, attempts, policy)
    dealt = deal(delivery, tree, attempts, policy, attribution.call_id, snapshot.outcome)
    metrics = measure(tree, attempts, dealt, attribution, policy)
    wrong = wrong_digests(recorded)
    lost = (
        *_lost(snapshot, tree),
        *(f"damaged_entry: {call}: prompt does not match its digest" for call in wrong),
    )
    error = None if dealt.rows else NOTHING_TRAINABLE if tree.entries else NO_RECORDS
    disputed = tuple(_disputed(delivery, tree, attempts, attribution))
    reasons = (*lost, *disputed, *((error,) if error else ()))
    held = metrics["generated_tokens_delivered"]
    checks = tuple(every_check(Case(snapshot, tree, attempts, dealt, attribution, held, wrong, agreement)))
    checked = Checked(recorded, dealt.rows, checks, *judge(checks, reasons))
    return Rebuilt(
        rollout_id=snapshot.rollout_id,
        snapshot_id=snapshot.snapshot_id,
        version=snapshot.version,
        delivery=delivery,
        rows=dealt.rows,
        mask_sample=bool(reasons),
        mask_reasons=reasons,
        metrics=metrics
        | {"certificate": checked.verdict}
        | ({"capture_incomplete": True} if lost else {})
        | ({"error": error} if error else {}),
        prefix_breaks=tree.breaks,
        terminal=attribution,
        ledger=dealt.ledger,
        tree=tuple(_nodes(tree, dealt, attempts)),
        unresolved=attempts.unresolved,
        certify=partial(certify, snapshot, checked, delivery=delivery, policy=policy, witnesses=witnesses),
    )


def _classified(snapshot: TokenCaptureSnapshot, tree: CallTree, policy: KindPolicy) -> CallTree:
    """The tree with the kinds that structure tells; another one where a kind makes a call no part of it."""
    found = by_structure(tree) if policy.structure else {}
    if not found:
        return tree

    def told(entry: TokenEntry) -> TokenEntry:
        kind, evidence = found.get(entry.model_call_id, (None, None))
        return entry if kind is None else entry.with_(kind=kind, kind_evidence=evidence)

    if all(policy.use_of(kind) is policy.use(tree.entries[call]) for call, (kind, _) in found.items()):
        return replace(tree, entries={call: told(entry) for call, entry in tree.entries.items()})
    return grow(map(told, snapshot.entries), policy)


def _lost(snapshot: TokenCaptureSnapshot, tree: CallTree) -> Iterator[str]:
    """What is known to be missing or damaged; nothing can say where it belonged."""
    if snapshot.incomplete:
        yield from (f"incomplete: {reason}" for reason in snapshot.incomplete_reasons or ("the source says so",))
    for call, entry in tree.entries.items():
        if entry.outcome is Outcome.COMPLETED and entry.damaged:
            yield f"damaged_entry: {call}: {entry.faults[0]}"


def _disputed(
    delivery: DeliveryForm, tree: CallTree, attempts: attempts_.Attempts, attribution: Attribution
) -> Iterator[str]:
    yield from (f"duplicate_call_id_conflict: {call}" for call in tree.conflicts)
    yield from (f"unresolved_retries: {', '.join(group)}" for group in attempts.unresolved)
    if attribution.disputed or (delivery == "chain" and attribution.chain == "not_captured"):
        yield attribution.reason


def _attempted(stands: str) -> str:
    return f"structure: the prompt is that of {stands}, which stands"


def _nodes(tree: CallTree, dealt: Dealt, attempts: attempts_.Attempts) -> Iterator[CallNode]:
    owned: dict[str, int] = {}
    rows: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for one in dealt.ledger:
        if one.row_id is None:
            reasons.setdefault(one.model_call_id, one.reason or "")
        else:
            owned[one.model_call_id] = owned.get(one.model_call_id, 0) + one.end - one.start
            rows[one.model_call_id] = one.row_id
    for call, entry in tree.entries.items():
        yield CallNode(
            model_call_id=call,
            parent=tree.parents.get(call),
            children=tuple(tree.children.get(call, ())),
            kind=RETRY if call in attempts.retries else kind_of(entry),
            kind_evidence=_attempted(attempts.retries[call]) if call in attempts.retries else entry.kind_evidence,
            status=dealt.status[call],
            reason="" if call in owned else reasons.get(call, ""),
            delivery=entry.delivery.value,
            prompt_tokens=len(entry.prompt_token_ids),
            sampled_tokens=len(entry.generation_token_ids),
            owned_tokens=owned.get(call, 0),
            kept_tokens=tree.kept[call],
            row_id=rows.get(call),
        )
