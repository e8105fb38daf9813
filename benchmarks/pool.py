"""A pool of 10,000 rollouts: bytes per token, and what adding, asking, drawing, filtering and compacting take.

Rollouts are synthetic: chains of calls as an agent makes them, ids from a Zipf distribution over a vocabulary of
152,000, about a quarter of the tokens sampled. `python benchmarks/pool.py [ROLLOUTS]` prints JSON.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rolltape.pool import Pool, Provenance
from rolltape.pool.filters.crashed import crashed
from rolltape.pool.filters.duplicate import Duplicate
from rolltape.pool.filters.no_variance import NoVariance
from rolltape.rebuild import Rebuilt, rebuild
from rolltape.record import TokenCaptureSnapshot, TokenEntry

VOCABULARY, CALLS, BATCH = 152_000, 6, 64


def tokens(rng: np.random.Generator, count: int, names: Any) -> Any:
    return names[np.minimum(rng.zipf(1.2, count) - 1, VOCABULARY - 1)].astype(np.int32)


def rollout(rng: np.random.Generator, names: Any, index: int) -> tuple[Rebuilt, Provenance]:
    task, reward = f"task-{index // 8}", float(rng.random() < 0.4)
    prompt, entries = tokens(rng, 600, names), []
    for call in range(CALLS):
        sampled = tokens(rng, int(rng.integers(30, 200)), names)
        log_probs = -rng.gamma(0.25, 1.2, len(sampled)).astype(np.float32)
        entry = TokenEntry(
            rollout_id=f"{task}-{index % 8}",
            model_call_id=f"c{call}",
            prompt_token_ids=prompt,
            generation_token_ids=sampled,
            generation_log_probs=log_probs,
            log_prob_kind="raw",
            policy_version=str(index // 1000),
            finish_reason="stop",
        )
        entries.append(entry)
        prompt = np.concatenate([entry.sequence, tokens(rng, int(rng.integers(50, 300)), names)])
    snapshot = TokenCaptureSnapshot(
        f"{task}-{index % 8}", tuple(entries), False, "s", 1, (), {"reward": reward, "ending": "finished"}
    )
    told = Provenance(
        run="bench",
        task_id=task,
        group_id=task,
        harness="synthetic",
        policy_versions=(str(index // 1000),),
        reward=reward,
    )
    return rebuild(snapshot), replace(told, ending="finished")


def timed(what: Callable[[], Any]) -> float:
    began = time.perf_counter()
    what()
    return round(time.perf_counter() - began, 4)


def batches(total: int) -> Iterator[list[tuple[Rebuilt, Provenance]]]:
    rng = np.random.default_rng(0)
    names = rng.permutation(VOCABULARY)
    for start in range(0, total, BATCH):
        yield [rollout(rng, names, index) for index in range(start, min(start + BATCH, total))]


def main() -> None:
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(Path(folder) / "pool", create=True)
        adding = sum(timed(lambda batch=batch: pool.add_all(batch)) for batch in batches(total))
        drawn = pool.sample(64, where="reward > 0", seed=0)
        numbers = {
            "add_all_s": round(adding, 2),
            "query_group_spread_s": timed(
                lambda: pool.query("select group_id from rollouts group by 1 having stddev(reward) > 0")
            ),
            "query_token_sum_s": timed(lambda: pool.query("select sum(list_sum(loss_mask)) as n from rows")),
            "sample_64_s": timed(lambda: pool.sample(64, where="reward > 0", seed=1)),
            "read_64_drawn_s": timed(lambda: list(pool.read(within=drawn.set_id))),
            "first_row_s": timed(lambda: next(pool.read())),
            "filter_three_s": timed(lambda: pool.filter([crashed(), Duplicate(), NoVariance()])),
            "read_all_s": timed(lambda: sum(batch.num_rows for batch in pool.rows())),
            "compact_s": timed(lambda: pool.compact(grace=0)),
            "query_group_spread_compacted_s": timed(
                lambda: pool.query("select group_id from rollouts group by 1 having stddev(reward) > 0")
            ),
            "read_64_drawn_compacted_s": timed(lambda: list(pool.read(within=drawn.set_id))),
        }
        told = {name: pool.stats()[name] for name in ("rollouts", "rows", "tokens", "loss_tokens", "bytes_per_token")}
    sys.stdout.write(json.dumps(told | numbers) + "\n")


main()
