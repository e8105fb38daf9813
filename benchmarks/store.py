"""The store's numbers, each beside a peer measured in the same run: `python benchmarks/store.py [--json]`.

Absolute numbers belong to one machine and one disk; the ratios and limits are what has to hold:

* bytes per new token of a rollout of 128k tokens in 200 calls, once closed (limit 8, and 1.2 MB in all);
* durable puts a second by 64 waiting writers, against one commit a put in plain SQLite and against bare fsyncs;
* latency of a durable put at call 200 against call 10 of that rollout (limit 1.5);
* CPU and memory of freezing it.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rolltape.record import TokenEntry
from rolltape.store import TokenCaptureStore

CALLS, LENGTH, SAMPLED = 200, 128_000, 0.375
WRITERS, PUTS_EACH = 64, 40


def rollout(rollout_id: str, calls: int = CALLS, length: int = LENGTH) -> list[TokenEntry]:
    """A chain of calls that ends at `length` tokens; ids uniform over 150k, the worst case for compression."""
    rng = np.random.default_rng(zlib.crc32(rollout_id.encode()))
    ids = rng.integers(0, 150_000, length, dtype=np.int32)
    log_probs = -rng.exponential(0.5, length).astype(np.float32)
    new = length // calls
    entries = []
    for number in range(calls):
        cut, end = number * new + int(new * (1 - SAMPLED)), (number + 1) * new
        entries.append(
            TokenEntry(
                rollout_id=rollout_id,
                model_call_id=f"chatcmpl-{rollout_id}-{number:06d}",
                prompt_token_ids=ids[:cut],
                generation_token_ids=ids[cut:end],
                generation_log_probs=log_probs[cut:end],
                log_prob_kind="raw",
                finish_reason="tool_calls",
                created_at=1.7e9 + number / 3,
                started_at=1.7e9 + number / 3 - 0.2,
                model="policy",
                engine="vllm",
                protocol="openai_chat",
                policy_version="12",
                sampling_asked={"temperature": 0.2, "max_tokens": 32_000},
                sampling_applied={"temperature": 1.0, "top_p": 1.0, "max_tokens": 4_096},
                response_id=f"chatcmpl-{rollout_id}-{number:06d}",
                request_digest="sha256:" + "0" * 64,
            )
        )
    return entries


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def one_rollout(folder: Path) -> dict[str, float]:
    """Size, latency by depth, and freeze of one long rollout."""
    entries = rollout("R")
    seconds = []
    store = TokenCaptureStore(folder)
    for entry in entries:
        await store.begin_call("R", entry.model_call_id)
        start = time.perf_counter()
        await store.put(entry)
        seconds.append(time.perf_counter() - start)
    cpu = []
    for _ in range(5):
        start = time.process_time()
        await store.freeze("R")
        cpu.append(time.process_time() - start)
    tracemalloc.start()
    await store.freeze("R")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    await store.close()
    size = size_of(folder)
    early, late = statistics.median(seconds[5:25]), statistics.median(seconds[-20:])
    return {
        "bytes": size,
        "bytes_per_new_token": size / LENGTH,
        "put_ms_call_10": early * 1e3,
        "put_ms_call_200": late * 1e3,
        "put_growth": late / early,
        "freeze_cpu_ms": statistics.median(cpu) * 1e3,
        "freeze_peak_mb": peak / 2**20,
    }


async def waiting_writers(folder: Path) -> dict[str, float]:
    """64 tasks, each a rollout of its own, putting as fast as they are acknowledged."""
    chains = [rollout(f"W{i}", PUTS_EACH, PUTS_EACH * 400) for i in range(WRITERS)]

    async def write(chain: list[TokenEntry]) -> None:
        for entry in chain:
            await store.put(entry)

    store = TokenCaptureStore(folder)
    batches = store._writer.batches
    start = time.perf_counter()
    await asyncio.gather(*map(write, chains))
    seconds = time.perf_counter() - start
    batches = store._writer.batches - batches
    await store.close()
    return {"puts_per_s": WRITERS * PUTS_EACH / seconds, "puts_per_sync": WRITERS * PUTS_EACH / batches}


def naive_sqlite(folder: Path) -> float:
    """Puts a second of the plain way: whole prompts, one transaction a put."""
    db = sqlite3.connect(folder / "naive.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE entries (id TEXT PRIMARY KEY, prompt BLOB, generation BLOB, log_probs BLOB)")
    puts = [entry for i in range(8) for entry in rollout(f"N{i}", PUTS_EACH, PUTS_EACH * 400)]
    start = time.perf_counter()
    for entry in puts:
        arrays = (entry.prompt_token_ids, entry.generation_token_ids, entry.generation_log_probs)
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (entry.model_call_id, *(a.tobytes() for a in arrays)))
    seconds = time.perf_counter() - start
    db.close()
    return len(puts) / seconds


def bare_fsync(folder: Path) -> tuple[float, float]:
    """(syncs a second, p50 in ms) of appending 4 KiB and fdatasync."""
    handle = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY)
    seconds = []
    for _ in range(300):
        start = time.perf_counter()
        os.write(handle, b"x" * 4096)
        os.fdatasync(handle)
        seconds.append(time.perf_counter() - start)
    os.close(handle)
    return len(seconds) / sum(seconds), statistics.median(seconds) * 1e3


def measure(folder: Path) -> dict[str, float]:
    def made(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    syncs, sync_ms = bare_fsync(made("bare"))
    result = {"fsync_per_s": syncs, "fsync_p50_ms": sync_ms, "naive_puts_per_s": naive_sqlite(made("naive"))}
    result |= asyncio.run(waiting_writers(made("writers")))
    result |= asyncio.run(one_rollout(made("rollout")))
    result["puts_over_naive"] = result["puts_per_s"] / result["naive_puts_per_s"]
    result["puts_over_fsyncs"] = result["puts_per_s"] / result["fsync_per_s"]
    return result


LIMITS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "bytes": ("< 1.2 MB", lambda v: v < 1.2e6),
    "bytes_per_new_token": ("<= 8", lambda v: v <= 8),
    "put_growth": ("<= 1.5", lambda v: v <= 1.5),
    "freeze_cpu_ms": ("< 50 (with rebuild)", lambda v: v < 50),
    "freeze_peak_mb": ("< 64", lambda v: v < 64),
    "puts_per_s": (">= 2000 at fsync <= 1 ms", lambda v: v >= 2000),
    "puts_per_sync": (">= 1", lambda v: v >= 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dir", help="measure this disk (default: the system's temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        result = measure(Path(folder))
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        limit, holds = LIMITS.get(name, ("", lambda v: True))
        print(f"{name:22}{value:14,.2f}  {limit:26}{'' if holds(value) else 'NOT HELD'}")


if __name__ == "__main__":
    main()
