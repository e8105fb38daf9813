"""What a durable put costs, store by store: `python benchmarks/durability.py [--json] [--stores sqlite,postgres]`.

1, 64 and 512 writers, each with rollouts of its own, put as fast as they are acknowledged: chains of ten calls that add
300 tokens each. Beside them, in the same run and on the same disk: bare fdatasyncs, and the file store of NeMo Gym,
where its environment is (`.ci/nemo-gym`). A PostgreSQL server is started for it where one is installed. Stores are
taken by their registered names; one that needs more has to be running already and is given by `ROLLTAPE_BENCH_<NAME>`
(JSON of its constructor's arguments).
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GYM = Path(os.environ.get("NEMO_GYM", ROOT / ".venv-nemo-gym")) / "bin" / "python"
WRITERS = (1, 64, 512)
SECONDS = 3.0
PROMPT, GENERATED, CALLS_A_ROLLOUT = 200, 100, 10
MOST_PUTS = 20_000
STORES = ("memory", "sqlite", "postgres", "transferqueue")


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50_ms": statistics.median(ordered) * 1e3,
        "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3,
    }


def tokens_of(writer: int, call: int) -> tuple[list[int], list[int]]:
    """Prompt and generation of a call: a chain of calls that each add as many tokens."""
    whole = [(writer * 7_919 + at * 104_729) % 150_000 for at in range((call + 1) * (PROMPT + GENERATED))]
    cut = len(whole) - GENERATED
    return whole[:cut], whole[cut:]


async def paced(put: Any, n_writers: int, entries: list[list[Any]]) -> dict[str, float]:
    """Puts a second and latencies of `n_writers` for some seconds. `entries[writer]` is what it puts, in order."""
    latencies: list[float] = []
    begun = time.perf_counter()

    async def write(own: list[Any]) -> None:
        for entry in own:
            start = time.perf_counter()
            if start - begun > SECONDS:
                return
            await put(entry)
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(write(own) for own in entries))
    return {"puts_per_s": len(latencies) / (time.perf_counter() - begun)} | quantiles(latencies)


def entries_for(n_writers: int, make: Any, tag: str) -> list[list[Any]]:
    """Enough for a fast store and some seconds: more rollouts one after another where there are few writers."""
    rollouts = max(MOST_PUTS // (CALLS_A_ROLLOUT * n_writers), 1) if n_writers > 1 else 400
    return [
        [
            make(f"{tag}-{n_writers}-{writer}-{number}", f"k{call}", *tokens_of(writer * rollouts + number, call))
            for number in range(rollouts)
            for call in range(CALLS_A_ROLLOUT)
        ]
        for writer in range(n_writers)
    ]


def ours(rollout_id: str, call_id: str, prompt: list[int], generation: list[int]) -> Any:
    from rolltape.record import TokenEntry

    log_probs: Any = [-0.1 - 0.001 * at for at in range(len(generation))]
    return TokenEntry(
        rollout_id=rollout_id,
        model_call_id=call_id,
        model="m",
        prompt_token_ids=prompt,  # type: ignore[arg-type]
        generation_token_ids=generation,  # type: ignore[arg-type]
        generation_log_probs=log_probs,
        created_at=1.7e9,
    )


def theirs(rollout_id: str, call_id: str, prompt: list[int], generation: list[int]) -> Any:
    from nemo_gym.token_id_capture.records import TokenEntry

    return TokenEntry(
        rollout_id=rollout_id,
        model_call_id=call_id,
        model="m",
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        generation_log_probs=[-0.1 - 0.001 * at for at in range(len(generation))],
        created_at=1.7e9,
    )


async def measured(store: Any, make: Any) -> AsyncIterator[tuple[str, dict[str, float]]]:
    for n_writers in WRITERS:
        yield str(n_writers), await paced(store.put, n_writers, entries_for(n_writers, make, "R"))


async def gym(folder: str) -> dict[str, Any]:
    """Runs in NeMo Gym's own environment."""
    from nemo_gym.token_id_capture.store import TokenCaptureStore as GymStore

    return {n: got async for n, got in measured(GymStore(Path(folder)), theirs)}


async def of_store(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from rolltape import registry

    store = registry.load("store", name)(**arguments)
    try:
        return {n: got async for n, got in measured(store, ours)}
    finally:
        await store.close()


def bare_fsync(folder: Path) -> dict[str, float]:
    handle = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY)
    seconds = []
    for _ in range(500):
        start = time.perf_counter()
        os.write(handle, b"x" * 4096)
        os.fdatasync(handle)
        seconds.append(time.perf_counter() - start)
    os.close(handle)
    return {"puts_per_s": len(seconds) / sum(seconds)} | quantiles(seconds)


@contextmanager
def arguments_of(name: str, folder: Path) -> Iterator[dict[str, Any] | None]:
    """What the store's constructor is given; None = it cannot be measured here."""
    given = os.environ.get(f"ROLLTAPE_BENCH_{name.upper()}")
    with ExitStack() as stack:
        if given:
            yield json.loads(given)
        elif name == "memory":
            yield {}
        elif name == "sqlite":
            yield {"dir": folder / name}
        elif name == "postgres":
            sys.path.insert(0, str(ROOT))
            try:
                from tests.store.postgres_server import Server  # the same private cluster that the tests start

                yield {"dsn": stack.enter_context(Server()).database()}
            except (AssertionError, ImportError):
                yield None
        else:
            yield None


def measure(folder: Path, stores: list[str]) -> dict[str, Any]:
    load = os.getloadavg()[0]
    result: dict[str, Any] = {"fdatasync": {"1": bare_fsync(folder)}}
    for name in stores:
        with arguments_of(name, folder) as arguments:
            if arguments is None:
                print(f"{name}: not measured, nothing to measure it on", file=sys.stderr)
            else:
                result[name] = asyncio.run(of_store(name, arguments))
    if GYM.exists():
        command = [str(GYM), __file__, "--gym", str(folder / "gym")]
        result["nemo-gym"] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    else:
        print(f"nemo-gym: not measured, there is no {GYM}", file=sys.stderr)
    result["fdatasync"]["again"] = bare_fsync(folder)
    return {"load_before": load, "load_after": os.getloadavg()[0], "stores": result}


def table(result: dict[str, Any]) -> Iterator[str]:
    yield f"| store | writers | puts/s | p50 ms | p99 ms |\n|---|---|---|---|---|  load {result['load_before']:.1f}"
    for name, by_writers in result["stores"].items():
        for writers, got in by_writers.items():
            yield f"| {name} | {writers} | {got['puts_per_s']:,.0f} | {got['p50_ms']:.2f} | {got['p99_ms']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stores", default=",".join(STORES), help="registered names, with commas between them")
    parser.add_argument("--dir", help="measure this disk (default: the system's temporary directory)")
    parser.add_argument("--gym", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.gym:
        Path(options.gym).mkdir()
        print(json.dumps(asyncio.run(gym(options.gym))))
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        result = measure(Path(folder), options.stores.split(","))
    print(json.dumps(result) if options.json else "\n".join(table(result)))


if __name__ == "__main__":
    main()
