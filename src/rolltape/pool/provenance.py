"""Where a rollout comes from, read off its snapshot and the runner's result; and its line in the table of rollouts.

A rollout's `uid` is a digest of its run, its id, its evidence and its rows. Adding the same again is the same line;
the same rollout with another reward, policy or delivery form is another one, and a filter tells the two apart.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from rolltape.rebuild import Rebuilt
from rolltape.record import Outcome, TokenCaptureSnapshot, TokenEntry

NO_VERSION, SEVERAL_VERSIONS = "unknown", "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What is known of a rollout beside its rows. None = not known.

    `group_id`: the attempts that are compared with each other; the task's id unless it is given. `agreement`: Pearson's
    correlation of a trainer's probabilities with the recorded ones. `finished_at` is in epoch seconds. `excluded`: it
    failed by no doing of the policy's.
    """

    run: str
    task_id: str | None = None
    group_id: str | None = None
    rollout_index: int | None = None
    attempt: int = 0
    harness: str | None = None
    harness_version: str | None = None
    engine: str | None = None
    model: str | None = None
    policy_versions: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    """Of the terminal call."""
    reward: float | None = None
    reward_source: str | None = None
    ending: str | None = None
    excluded: bool = False
    excluded_reason: str | None = None
    agreement: float | None = None
    finished_at: float | None = None
    seconds: float | None = None
    run_labels: Mapping[str, Any] = field(default_factory=dict)

    @property
    def partition(self) -> tuple[str, str]:
        """The run and the policy version under which its parts are filed."""
        versions = self.policy_versions
        return self.run, (versions[0] if len(versions) == 1 else SEVERAL_VERSIONS if versions else NO_VERSION)


def provenance_of(
    snapshot: TokenCaptureSnapshot,
    rebuilt: Rebuilt,
    *,
    run: str,
    result: Mapping[str, Any] | None = None,
    group_id: str | None = None,
    agreement: float | None = None,
) -> Provenance:
    """What `snapshot` and the runner's `result` (a line of its file; None = there is none) say of a rollout."""
    told, outcome = result or {}, snapshot.outcome
    labels = outcome.get("labels") or {}
    completed = [entry for entry in snapshot.entries if entry.outcome is Outcome.COMPLETED]
    terminal = next((one for one in completed if one.model_call_id == rebuilt.terminal.call_id), None)
    reward = told.get("reward", outcome.get("reward"))
    task_id = told.get("task_id") or labels.get("task_id")
    index = told.get("rollout_index")
    return Provenance(
        run=run,
        task_id=task_id,
        group_id=group_id or task_id,
        rollout_index=index,
        attempt=_attempt(rebuilt.rollout_id, task_id, index),
        harness=told.get("harness") or labels.get("harness"),
        harness_version=told.get("harness_version"),
        engine=_joined(entry.engine for entry in completed),
        model=_joined(entry.model for entry in completed) or told.get("model"),
        policy_versions=tuple(sorted({version for entry in completed for version in _versions(entry)})),
        sampling=_sampling(completed),
        finish_reason=terminal.finish_reason if terminal else None,
        reward=reward,
        reward_source=_reward_source(told, reward),
        ending=told.get("ending") or outcome.get("ending"),
        excluded=bool(told.get("exclude")),
        excluded_reason=told.get("excluded_reason"),
        agreement=agreement,
        finished_at=max((entry.created_at for entry in completed), default=0.0) or None,
        seconds=told.get("seconds"),
        run_labels={name: value for name, value in labels.items() if name not in ("task_id", "harness")},
    )


def _attempt(rollout_id: str, task_id: str | None, index: int | None) -> int:
    """The number that the runner gave: `TASK-INDEX-aN`; the first has none."""
    found = re.fullmatch(re.escape(f"{task_id}-{index}") + r"-a([1-9]\d*)", rollout_id)
    return int(found[1]) if found else 0


def _joined(names: Any) -> str | None:
    return ", ".join(sorted({name for name in names if name})) or None


def _versions(entry: TokenEntry) -> set[str]:
    known = {entry.policy_version, entry.policy_version_end, *(version for _, _, version in entry.policy_spans)}
    return {version for version in known if version is not None}


def _sampling(entries: list[TokenEntry]) -> dict[str, Any]:
    """What was applied to every call, or under `varied` all there was."""
    applied = {msgspec.json.encode(dict(entry.sampling_applied), order="sorted") for entry in entries}
    ways = [msgspec.json.decode(one, type=dict[str, Any]) for one in sorted(applied)]
    return ways[0] if len(ways) == 1 else {"varied": ways} if ways else {}


def _reward_source(told: Mapping[str, Any], reward: float | None) -> str | None:
    if reward is None:
        return None
    return "check" if told.get("check_exit_code") is not None else "result" if "reward" in told else "outcome"


def rollout_line(rebuilt: Rebuilt, told: Provenance, part: str, now: float) -> dict[str, Any]:
    """The rollout's line in the table of rollouts."""
    certificate = rebuilt.certificate
    words = {name: _json(getattr(told, name)) for name in ("sampling", "run_labels")}
    return {
        **asdict(told),
        **words,
        "policy_versions": list(told.policy_versions),
        "uid": uid_of(rebuilt, told.run),
        "part": part,
        "rollout_id": rebuilt.rollout_id,
        "delivery": str(rebuilt.delivery),
        "snapshot_id": rebuilt.snapshot_id,
        "snapshot_version": rebuilt.version,
        "verdict": certificate.verdict,
        "verdict_reasons": list(certificate.reasons),
        "certificate_digest": certificate.digest,
        "masked": rebuilt.mask_sample,
        "mask_reasons": list(rebuilt.mask_reasons),
        "incomplete": bool(rebuilt.metrics.get("capture_incomplete")),
        "calls": rebuilt.metrics.get("n_calls"),
        "rows": len(rebuilt.rows),
        "tokens": sum(len(row.token_ids) for row in rebuilt.rows),
        "loss_tokens": sum(row.loss_tokens for row in rebuilt.rows),
        "tokens_digest": _tokens_digest(rebuilt),
        "metrics": _json(rebuilt.metrics),
        "added_at": now,
    }


def uid_of(rebuilt: Rebuilt, run: str) -> str:
    """The same for the same rollout of the same run, rebuilt to the same rows; 32 hex digits."""
    certificate = rebuilt.certificate
    said = [run, rebuilt.rollout_id, certificate.evidence, str(rebuilt.delivery), dict(certificate.rows)]
    return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()[:32]


def _tokens_digest(rebuilt: Rebuilt) -> str:
    state = hashlib.sha256()
    for row in rebuilt.rows:
        state.update(len(row.token_ids).to_bytes(8, "little"))
        state.update(row.token_ids.tobytes())
        state.update(row.loss_mask.tobytes())
    return state.hexdigest()


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted", enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"no place for a {type(value).__name__} in a pool")
