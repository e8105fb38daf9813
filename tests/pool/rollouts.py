"""Rollouts as a runner leaves them, rebuilt by the real rebuild."""

from typing import Any

from rolltape.pool import Added, Pool, provenance_of
from rolltape.rebuild import Rebuilt, rebuild
from rolltape.record import TokenCaptureSnapshot, TokenEntry


def snapshot(rollout_id: str, *, calls: int = 3, reward: float | None = 1.0, **more: Any) -> TokenCaptureSnapshot:
    """A chain of calls, each of which extends the one before. `more` changes every call, or the outcome."""
    outcome = {"reward": reward, "ending": more.pop("ending", "finished")}
    task = more.pop("task", rollout_id.rpartition("-")[0] or "task")
    incomplete = more.pop("incomplete", False)
    start = sum(map(ord, rollout_id))
    prompt, entries = [1, 2, 3, start], []
    for index in range(calls):
        sampled = [1000 + start + index, 2000 + index, 7]
        known: dict[str, Any] = {
            "policy_version": "3",
            "engine": "scripted",
            "model": "tiny",
            "log_prob_kind": "raw",
            "finish_reason": "stop",
            "sampling_applied": {"temperature": 1.0},
            "created_at": 100.0 + index,
        }
        entry = TokenEntry(
            rollout_id=rollout_id,
            model_call_id=f"c{index}",
            prompt_token_ids=prompt,
            generation_token_ids=sampled,
            generation_log_probs=[-0.1 * (index + 1), -0.0, -1e-30],
            **(known | more),
        )
        entries.append(entry)
        prompt = [*prompt, *sampled, 50 + index]
    lost = ("lost: c9",) if incomplete else ()
    labels = {"task_id": task, "harness": "mini-swe-agent"}
    return TokenCaptureSnapshot(
        rollout_id,
        tuple(entries),
        incomplete,
        "s1",
        1,
        lost,
        outcome | {"labels": labels},
    )


def put(pool: Pool, rollout_id: str, *, run: str = "run-1", result: dict[str, Any] | None = None, **more: Any) -> Added:
    """Add one rollout to `pool`."""
    one, rebuilt = made(rollout_id, **more)
    return pool.add(rebuilt, provenance_of(one, rebuilt, run=run, result=result))


def made(rollout_id: str, **more: Any) -> tuple[TokenCaptureSnapshot, Rebuilt]:
    one = snapshot(rollout_id, **more)
    return one, rebuild(one)
