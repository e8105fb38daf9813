"""What a certificate checks, each with pass, fail or unknown and its reason. Pure, and cheap: no token is read twice.

A check that nothing stored can decide (`agreement`, which needs a trainer) does not count against a rollout while it is
unknown.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rolltape.chat import DISTRIBUTION_FIELDS
from rolltape.rebuild.attempts import Attempts
from rolltape.rebuild.digests import prompts
from rolltape.rebuild.policy import DEFAULT_KIND, kind_of
from rolltape.rebuild.rows import Dealt
from rolltape.rebuild.terminal import Attribution
from rolltape.rebuild.tree import CallTree
from rolltape.record import Fault, LogProbKind, Outcome, Row, TokenCaptureSnapshot, TokenEntry

Verdict: TypeAlias = Literal["exact", "usable", "masked"]
Result: TypeAlias = Literal["pass", "fail", "unknown"]
FROM_A_FILE = "file"
"""The snapshot id of entries that no store handed out: nobody knows what was begun and lost."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Result
    reason: str
    counts: bool = True
    """False where it says something that is no part of the verdict."""

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "verdict": self.verdict, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Case:
    """A rollout and everything that was made of it. `agreement`: what a trainer's log-probs said; None = not asked."""

    snapshot: TokenCaptureSnapshot
    tree: CallTree
    attempts: Attempts
    dealt: Dealt
    attribution: Attribution
    held: int
    """Loss tokens of all rows."""
    wrong: Sequence[str] = ()
    """Calls that do not match the digest that was stored with them."""
    agreement: bool | None = None

    @property
    def completed(self) -> Mapping[str, TokenEntry]:
        return {call: one for call, one in self.tree.entries.items() if one.outcome is Outcome.COMPLETED}

    @property
    def trained(self) -> Mapping[str, TokenEntry]:
        """The calls that own loss in some row."""
        return {one.model_call_id: self.tree.entries[one.model_call_id] for one in self.dealt.ledger if one.row_id}


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks came to. `recorded` has the kinds that were recorded, and not those that structure tells."""

    recorded: CallTree
    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    verdict: Verdict
    reasons: tuple[str, ...]


def every_check(case: Case) -> Iterator[Check]:
    trained = case.trained
    yield _ids(case)
    yield _lengths(case)
    yield _log_probs(case)
    yield _log_prob_kind(trained)
    yield _sampling(trained)
    yield _versions(trained)
    yield _intents(case.snapshot)
    yield _digests(case)
    yield _attempts(case)
    yield _terminal(case.attribution)
    yield _stability(case)
    yield _ownership(case)
    agreed: Result = "unknown" if case.agreement is None else "pass" if case.agreement else "fail"
    yield Check("agreement", agreed, "a trainer's log-probs decide it", counts=case.agreement is not None)


def _ids(case: Case) -> Check:
    doubtful = [call for call, entry in case.completed.items() if not entry.ids_exact]
    if doubtful:
        return Check("ids", "fail", f"{_named(doubtful)}: ids in doubt")
    return Check("ids", "pass", f"{len(case.completed)} completed calls have exact prompt and sampled ids")


def _lengths(case: Case) -> Check:
    uneven = [
        call
        for call, entry in case.completed.items()
        if any(Fault.of(fault) in (Fault.LOG_PROBS_LENGTH, Fault.TOKEN_COUNT_MISMATCH) for fault in entry.faults)
    ]
    if uneven:
        return Check("lengths", "fail", f"{_named(uneven)}: counts of ids and log-probs differ")
    return Check("lengths", "pass", "as many log-probs as sampled ids in every completed call")


def _log_probs(case: Case) -> Check:
    faults = {fault.value for fault in Fault if not fault.damages_ids} | {
        "log_prob_invalid",
        "partly_unusable_log_probs",
    }
    lost = sum(o.end - o.start for o in case.dealt.ledger if o.row_id is None and _head(o.reason) in faults)
    if lost:
        return Check("log_probs", "fail", f"{lost} sampled tokens have no log-prob that a loss may use")
    return Check("log_probs", "pass", "every token that a loss holds has a finite log-prob")


def _head(reason: str | None) -> str:
    return (reason or "").partition(":")[0]


def _log_prob_kind(trained: Mapping[str, TokenEntry]) -> Check:
    """Grammar-masked spans carry no loss, so only the kinds of the others matter."""
    kinds = {kind for entry in trained.values() for kind in _kinds(entry)}
    if LogProbKind.UNKNOWN in kinds:
        return Check("log_prob_kind", "unknown", "nobody recorded of which distribution the log-probs are")
    if len(kinds) > 1:
        return Check("log_prob_kind", "fail", f"log-probs of several distributions: {', '.join(sorted(kinds))}")
    heated = [call for call, one in trained.items() if LogProbKind.RAW in kinds and _temperature(one) not in (None, 1)]
    if heated:
        return Check("log_prob_kind", "fail", f"{_named(heated)}: raw log-probs, but sampled at another temperature")
    return Check("log_prob_kind", "pass", f"all log-probs are {next(iter(kinds), 'none')}")


def _kinds(entry: TokenEntry) -> set[str]:
    covered = sum(end - start for start, end, _ in entry.log_prob_spans)
    own = {str(entry.log_prob_kind)} if covered < len(entry.generation_token_ids) else set()
    return (own | {str(kind) for _, _, kind in entry.log_prob_spans}) - {str(LogProbKind.GRAMMAR_MASKED)}


def _temperature(entry: TokenEntry) -> Any:
    return entry.sampling_applied.get("temperature")


def _sampling(trained: Mapping[str, TokenEntry]) -> Check:
    """One distribution for all of a rollout, as a pin makes it."""
    silent = [call for call, entry in trained.items() if not entry.sampling_applied]
    if silent:
        return Check("sampling_pin", "unknown", f"{_named(silent)}: nobody recorded how it was sampled")
    applied = Counter(_distribution(entry) for entry in trained.values())
    if len(applied) > 1:
        varied = sorted({name for one in applied for name, _ in one.symmetric_difference(next(iter(applied)))})
        return Check("sampling_pin", "fail", f"sampled in {len(applied)} ways: {', '.join(varied)} vary")
    said = ", ".join(sorted(f"{name} {value}" for name, value in next(iter(applied), ())))
    return Check("sampling_pin", "pass", f"one way of sampling: {said or 'the defaults of the engine'}")


def _distribution(entry: TokenEntry) -> frozenset[tuple[str, str]]:
    return frozenset(
        (name, str(value)) for name, value in entry.sampling_applied.items() if name in DISTRIBUTION_FIELDS
    )


def _versions(trained: Mapping[str, TokenEntry]) -> Check:
    mixed = [call for call, entry in trained.items() if _is_mixed(entry)]
    if mixed:
        return Check("policy_versions", "fail", f"{_named(mixed)}: weights changed within it, and nobody knows where")
    silent = [call for call, entry in trained.items() if entry.policy_version is None and not entry.policy_spans]
    if silent:
        return Check("policy_versions", "unknown", f"{_named(silent)}: nobody recorded which weights sampled")
    versions = {str(entry.policy_version) for entry in trained.values()}
    versions |= {version for entry in trained.values() for _, _, version in entry.policy_spans}
    return Check("policy_versions", "pass", f"sampled by {', '.join(sorted(versions)) or 'nothing'}")


def _is_mixed(entry: TokenEntry) -> bool:
    ends = entry.policy_version_end
    return ends is not None and ends != entry.policy_version and not entry.policy_spans


def _intents(snapshot: TokenCaptureSnapshot) -> Check:
    if snapshot.incomplete:
        return Check("intents", "fail", "; ".join(snapshot.incomplete_reasons) or "the source says that calls are lost")
    if snapshot.snapshot_id == FROM_A_FILE:
        return Check("intents", "unknown", "a file of entries does not tell which calls were begun")
    return Check("intents", "pass", "every call that was begun has its entry")


def wrong_digests(tree: CallTree) -> tuple[str, ...]:
    """The calls whose prompt does not match the digest that came with it. Linear in the tokens that are new."""
    told = {call: e.prompt_digest for call, e in tree.entries.items() if e.prompt_digest is not None}
    if not told:
        return ()
    return tuple(call for call, digest in prompts(tree) if told.get(call, digest) != digest)


def _digests(case: Case) -> Check:
    entries = case.tree.entries
    silent = sum(entry.prompt_digest is None for entry in entries.values())
    if case.wrong:
        return Check("digests", "fail", f"{_named(case.wrong)}: prompt and stored digest differ")
    if silent:
        return Check("digests", "unknown", f"{silent} of {len(entries)} calls came without a digest")
    return Check("digests", "pass", f"{len(entries)} prompts match the digests stored with them")


def _attempts(case: Case) -> Check:
    if case.attempts.unresolved:
        groups = "; ".join(", ".join(group) for group in case.attempts.unresolved)
        return Check("attempts", "fail", f"nothing tells which one the harness used: {groups}")
    if case.tree.conflicts:
        return Check("attempts", "fail", f"{_named(case.tree.conflicts)}: recorded twice, with different contents")
    return Check("attempts", "pass", "it is known of every attempt what became of it")


def _terminal(attribution: Attribution) -> Check:
    if attribution.disputed:
        return Check("terminal", "fail", attribution.reason)
    found = f"{attribution.call_id} by {attribution.method}"
    return Check("terminal", "pass", found if attribution.call_id else attribution.reason or "there is no call")


def _stability(case: Case) -> Check:
    """A conversation that begins after a compaction, or that is a side call's or a sub-agent's, breaks nothing."""
    entries = case.tree.entries
    broken = [one for one in case.tree.breaks if kind_of(entries[one.call]) == DEFAULT_KIND]
    renewed = sum(kind_of(entry) == "compaction" for entry in entries.values())
    fresh = [one for one in broken if one.nearest is None or one.first_divergence < _prompt(case, one.nearest)]
    unexplained = len(broken) - min(renewed, len(fresh))
    if unexplained:
        causes = ", ".join(f"{n} {cause}" for cause, n in sorted(Counter(one.cause for one in broken).items()))
        what = f"{unexplained} prompts leave the tokens of the calls before them ({causes})"
        return Check("template_stability", "fail", what)
    return Check("template_stability", "pass", "every prompt extends what was sampled before it")


def _prompt(case: Case, call: str) -> int:
    return len(case.tree.entries[call].prompt_token_ids)


def _ownership(case: Case) -> Check:
    """Counted anew from the rows: a token in two losses, or in none without a reason, would be a fault of ours."""
    entered = Counter[str]()
    for one in case.dealt.ledger:
        entered[one.model_call_id] += one.end - one.start
    sampled = {call: len(entry.generation_token_ids) for call, entry in case.tree.entries.items()}
    owned = sum(one.end - one.start for one in case.dealt.ledger if one.row_id)
    if case.held != owned or any(entered[call] != count for call, count in sampled.items()):
        return Check(
            "ownership", "fail", f"rows hold {case.held} tokens, the ledger {owned} of {sum(sampled.values())}"
        )
    return Check("ownership", "pass", f"{owned} of {sum(sampled.values())} sampled tokens owned once, the rest named")


def _named(calls: Sequence[str]) -> str:
    more = f" and {len(calls) - _SHOWN} more" if len(calls) > _SHOWN else ""
    return ", ".join(calls[:_SHOWN]) + more
