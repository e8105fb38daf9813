"""What a rebuild costs: CPU, and memory above what the snapshot itself holds.

    python benchmarks/rebuild.py [--json]

Each shape runs in a process of its own, so that peak memory is its own. *sliced*: the prompts of a chain are slices of
one buffer, as the stores hand them out; *whole*: every entry has arrays of its own, as read from JSON.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from rolltape.rebuild import rebuild
from rolltape.record import Outcome, TokenCaptureSnapshot, TokenEntry
from rolltape.tokens import IntArray

GENERATED = 96
RUNS = 7


def entry(name: str, prompt: IntArray, generation: IntArray, **more: object) -> TokenEntry:
    log_probs = np.full(len(generation), -0.5, np.float32)
    return TokenEntry(
        rollout_id="bench",
        model_call_id=name,
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        generation_log_probs=log_probs,
        **more,  # type: ignore[arg-type]
    )


def chain(tokens: int, calls: int, *, sliced: bool) -> list[TokenEntry]:
    """`calls` turns that end at `tokens` ids."""
    buffer = np.random.default_rng(7).integers(1000, 150_000, tokens, dtype=np.int32)
    step = tokens // calls
    entries = []
    for turn in range(calls):
        end = tokens if turn == calls - 1 else (turn + 1) * step
        start = end - min(GENERATED, step // 2)
        prompt, generation = buffer[:start], buffer[start:end]
        if not sliced:
            prompt, generation = prompt.copy(), generation.copy()
        entries.append(entry(f"call-{turn:05d}", prompt, generation, created_at=float(turn)))
    return entries


def with_empties(entries: list[TokenEntry]) -> list[TokenEntry]:
    """Every tenth call also sampled nothing once."""
    nothing = np.empty(0, np.int32)
    extra = [entry(f"{e.model_call_id}-empty", e.prompt_token_ids, nothing) for e in entries[::10]]
    return entries + extra


def with_retries(entries: list[TokenEntry]) -> list[TokenEntry]:
    """Every call was also made a second time, with another answer that nobody went on with."""
    others = [
        entry(f"{e.model_call_id}-retry", e.prompt_token_ids, e.generation_token_ids[::-1].copy()) for e in entries
    ]
    failed = [e.with_(model_call_id=f"{e.model_call_id}-500", outcome=Outcome.FAILED) for e in entries[::20]]
    return entries + others + failed


def broken(entries: list[TokenEntry]) -> list[TokenEntry]:
    """The template drops the first sampled id of every turn from the history: no call extends another."""
    cuts = [len(e.prompt_token_ids) for e in entries]
    whole = entries[-1].prompt_token_ids
    return [
        entry(e.model_call_id, np.delete(whole[: cuts[i]], cuts[:i]), e.generation_token_ids.copy())
        for i, e in enumerate(entries)
    ]


SHAPES: dict[str, Callable[[], list[TokenEntry]]] = {
    "128k / 200 calls, sliced": lambda: chain(131_072, 200, sliced=True),
    "128k / 200 calls, whole": lambda: chain(131_072, 200, sliced=False),
    "128k / 200 calls + empties": lambda: with_empties(chain(131_072, 200, sliced=True)),
    "128k / 200 calls + retries": lambda: with_retries(chain(131_072, 200, sliced=True)),
    "128k / 1,000 turns": lambda: chain(131_072, 1_000, sliced=True),
    "128k / 1,000 turns + retries": lambda: with_retries(chain(131_072, 1_000, sliced=True)),
    "32k / 200 calls, every link broken": lambda: broken(chain(32_768, 200, sliced=True)),
    "32k / 50 calls": lambda: chain(32_768, 50, sliced=True),
}


def measure(shape: str) -> dict[str, object]:
    """Median CPU of several runs, and the peak that the first one adds to the process."""
    entries = SHAPES[shape]()
    snapshot = TokenCaptureSnapshot("bench", tuple(entries), False, "s", 1)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    built = rebuild(snapshot)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    costs = []
    for _ in range(RUNS):
        start = time.process_time()
        rebuild(snapshot)
        costs.append((time.process_time() - start) * 1000)
    return {
        "shape": shape,
        "calls": len(entries),
        "rows": len(built.rows),
        "delivered": built.metrics["delivered_fraction"],
        "cpu_ms": round(float(np.median(costs)), 2),
        "us_per_call": round(float(np.median(costs)) / len(entries) * 1000, 1),
        "peak_mb": round(peak / 1024, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    parser.add_argument("--shape", help="measure this one shape in this process")
    options = parser.parse_args()
    if options.shape:
        print(json.dumps(measure(options.shape)))
        return
    results = [
        json.loads(subprocess.run([sys.executable, __file__, "--shape", s], check=True, capture_output=True).stdout)
        for s in SHAPES
    ]
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'shape':36} {'calls':>6} {'rows':>5} {'CPU ms':>8} {'us/call':>8} {'peak MB':>8}")
    for r in results:
        print(f"{r['shape']:36} {r['calls']:6} {r['rows']:5} {r['cpu_ms']:8} {r['us_per_call']:8} {r['peak_mb']:8}")


if __name__ == "__main__":
    main()
