"""What a rebuild costs at 128k to 1M tokens, beside NeMo Gym's builder: CPU, and memory above what it is given.

    python benchmarks/rebuild.py [--json] [--largest TOKENS] [--no-gym]

A call adds 1,000 tokens at every size, 96 of them sampled; the design's bound, 200 calls in 131,072 tokens, stands
before the others. Each measurement runs in a process of its own, so that peak memory is its own. Shapes:

    store       a SQLite directory, opened anew: freeze and rebuild, as a rollout is finalized
    sliced      the prompts of a chain are slices of one buffer, as the stores hand them out
    whole       every entry has arrays of its own, as read from JSON
    empties     every tenth call also sampled nothing once
    retries     every call was made twice, every twentieth also failed
    sub-agents  every tenth turn starts a sub-agent of five turns, told in words that the turn sampled
    broken      no call extends another: the template drops the first sampled id of every turn

What is linear, and in what: *ids* are those that a rebuild is given, each buffer once, and those of the rows that it
makes. Where prompts are slices they grow as the rollout does; *whole* is given, and *broken* also makes, a copy of its
history a call. The builder of `.venv-nemo-gym` is given lists, and measured in turn with ours, size after size; where
it would take over a minute, by its growth so far, it is left out.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # NeMo Gym's Python runs this file too, and has no Rolltape
    from rolltape.record import TokenCaptureSnapshot, TokenEntry

ROOT = Path(__file__).parents[1]
GYM = Path(os.environ.get("NEMO_GYM", ROOT / ".venv-nemo-gym")) / "bin" / "python"
BOUND = (131_072, 200)
SIZES = ((128_000, 128), (250_000, 250), (500_000, 500), (1_000_000, 1_000))
GENERATED, SYSTEM, TASK, TURNS = 96, 500, 64, 5
FEWEST, RUNS, ENOUGH_S, LONGEST_S = 3, 9, 4.0, 60.0
MEMORY = 16 * 2**30
Ids = NDArray[np.int32]


class Call(NamedTuple):
    """One call for either side. `parent`: whose tokens its prompt extends; None = a root, "" = nobody can tell."""

    name: str
    prompt: Ids
    generation: Ids
    at: float
    parent: str | None
    failed: bool = False


def chain(tokens: int, calls: int, *, name: str = "call", begins: Ids | None = None, at: float = 0.0) -> list[Call]:
    """`calls` turns that end at `tokens` ids, the first of which are `begins`."""
    buffer = np.random.default_rng(len(name) + int(at)).integers(1000, 150_000, tokens, dtype=np.int32)
    if begins is not None:
        buffer[: len(begins)] = begins
    made: list[Call] = []
    for turn in range(calls):
        end = tokens * (turn + 1) // calls
        start = end - GENERATED
        parent = made[-1].name if made else None
        made.append(Call(f"{name}-{turn:05d}", buffer[:start], buffer[start:end], at + turn, parent))
    return made


def whole(tokens: int, calls: int) -> list[Call]:
    return [c._replace(prompt=c.prompt.copy(), generation=c.generation.copy()) for c in chain(tokens, calls)]


def empties(tokens: int, calls: int) -> list[Call]:
    made = chain(tokens, calls)
    return made + [c._replace(name=f"{c.name}-empty", generation=c.generation[:0]) for c in made[::10]]


def retries(tokens: int, calls: int) -> list[Call]:
    made = chain(tokens, calls)
    others = [c._replace(name=f"{c.name}-retry", generation=c.generation[::-1].copy()) for c in made]
    return made + others + [c._replace(name=f"{c.name}-500", failed=True) for c in made[::20]]


def subagents(tokens: int, calls: int) -> list[Call]:
    """Two thirds of the tokens are the main agent's."""
    main = chain(tokens * 2 // 3, calls * 2 // 3)
    system = np.arange(1000, 1000 + SYSTEM, dtype=np.int32)
    made = list(main)
    for call in main[4:-1:10]:
        begins = np.concatenate([system, call.generation[8 : 8 + TASK]])
        made += chain(TURNS * tokens // calls, TURNS, name=f"sub-{call.name}", begins=begins, at=call.at + 0.1)
    return made


def broken(tokens: int, calls: int) -> list[Call]:
    made = chain(tokens, calls)
    cuts = [len(call.prompt) for call in made]
    history = made[-1].prompt
    kept = [np.delete(history[:cut], cuts[:turn]) for turn, cut in enumerate(cuts)]
    return [
        c._replace(prompt=kept[turn], generation=c.generation.copy(), parent="" if turn else None)
        for turn, c in enumerate(made)
    ]


SHAPES: dict[str, Callable[[int, int], list[Call]]] = {
    "store": chain,
    "sliced": chain,
    "whole": whole,
    "empties": empties,
    "retries": retries,
    "sub-agents": subagents,
    "broken": broken,
}
BESIDE_GYM = ("whole", "retries", "sub-agents", "broken")
"""Lists know no slices, so `whole` stands for all chains without retries."""


def ours(calls: Sequence[Call]) -> "tuple[TokenEntry, ...]":
    from rolltape.record import Outcome, TokenEntry
    from rolltape.tokens import digest

    return tuple(
        TokenEntry(
            rollout_id="R",
            model_call_id=call.name,
            prompt_token_ids=call.prompt,
            generation_token_ids=call.generation,
            generation_log_probs=np.full(len(call.generation), -0.5, np.float32),
            outcome=Outcome.FAILED if call.failed else Outcome.COMPLETED,
            prompt_digest=digest(call.prompt),
            created_at=call.at,
        )
        for call in calls
    )


def theirs(calls: Sequence[Call]) -> list[Any]:
    """NeMo Gym's entries, each with the parent that its request path would have recorded. It keeps no failed calls."""
    from nemo_gym.token_id_capture.records import ParentResolutionStatus, TokenEntry, stamp_lineage

    numbers = np.arange(150_000).astype(object)  # one object an id: otherwise the largest fit in no memory

    def entry(call: Call) -> Any:
        one = TokenEntry.model_construct(
            rollout_id="R",
            model_call_id=call.name,
            prompt_token_ids=numbers[call.prompt].tolist(),
            generation_token_ids=numbers[call.generation].tolist(),
            generation_log_probs=[-0.5] * len(call.generation),
            created_at=call.at,
        )
        status = {None: ParentResolutionStatus.ROOT, "": ParentResolutionStatus.UNRESOLVED}
        resolved = status.get(call.parent, ParentResolutionStatus.RESOLVED)
        return stamp_lineage(one, call.parent or None, parent_resolution=resolved)

    return [entry(call) for call in calls if not call.failed]


def held(entries: "Sequence[TokenEntry]") -> int:
    """Ids in all prompts and generations, each buffer once."""
    buffers: dict[int, int] = {}
    for one in entries:
        for ids in (one.prompt_token_ids, one.generation_token_ids):
            root: Any = ids
            while isinstance(root.base, np.ndarray):
                root = root.base
            buffers[id(root)] = root.size
    return sum(buffers.values())


def status(name: str) -> float:
    """A line of this process's memory, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def timed(work: Callable[[], Any], fewest: int = FEWEST) -> tuple[float, float, Any]:
    """Median CPU ms of several runs after a first, the peak in MB that the first adds, and what the last came to."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    base, start = status("VmRSS"), time.process_time()
    result = work()
    first, peak, costs = time.process_time() - start, status("VmHWM") - base, list[float]()
    while len(costs) < fewest or (len(costs) < RUNS and first + sum(costs) < ENOUGH_S):
        del result  # gigabytes of rows: the next run has their memory
        start = time.process_time()
        result = work()
        costs.append(time.process_time() - start)
    return statistics.median(costs or [first]) * 1000, peak, result


def measure(shape: str, tokens: int, calls: int) -> dict[str, Any]:
    from rolltape.rebuild import rebuild
    from rolltape.record import TokenCaptureSnapshot

    entries = ours(SHAPES[shape](tokens, calls))
    if shape == "store":
        return from_store(entries, tokens)
    snapshot = TokenCaptureSnapshot("R", entries, False, "s", 1)
    return told(shape, tokens, snapshot, *timed(lambda: rebuild(snapshot)))


def from_store(entries: "tuple[TokenEntry, ...]", tokens: int) -> dict[str, Any]:
    """Written, closed, and opened anew; the table's pages are in the system's cache."""
    from rolltape.rebuild import rebuild
    from rolltape.store import TokenCaptureStore

    async def write(folder: Path) -> None:
        store = TokenCaptureStore(folder)
        for entry in entries:
            await store.put(entry)
        await store.close()

    async def read(folder: Path) -> "TokenCaptureSnapshot":
        store = TokenCaptureStore(folder)
        try:
            return await store.freeze("R")
        finally:
            await store.close()

    run = asyncio.new_event_loop().run_until_complete  # `asyncio.run` takes the repr of its result, ids and all
    with tempfile.TemporaryDirectory() as name:
        run(write(Path(name)))
        snapshot = run(read(Path(name)))
        return told("store", tokens, snapshot, *timed(lambda: rebuild(run(read(Path(name))))))


def told(
    shape: str, tokens: int, snapshot: "TokenCaptureSnapshot", ms: float, peak: float, built: Any
) -> dict[str, Any]:
    start = time.process_time()
    built.certify()
    ids = held(snapshot.entries) + sum(len(row.token_ids) for row in built.rows)
    return {
        "shape": shape,
        "tokens": tokens,
        "calls": len(snapshot.entries),
        "rows": len(built.rows),
        "delivered": built.metrics["delivered_fraction"],
        "kinds": built.metrics["calls_by_kind"],
        "ids": ids,
        "cpu_ms": round(ms, 2),
        "ns_per_id": round(ms * 1e6 / ids, 2),
        "peak_mb": round(peak, 1),
        "rows_mb": round(sum(row.token_ids.nbytes * 9 / 4 for row in built.rows) / 2**20, 1),
        "certificate_ms": round((time.process_time() - start) * 1000, 2),
    }


def measure_gym(shape: str, tokens: int, calls: int) -> dict[str, Any]:
    """The builder alone: no store, no projection to a response, which copies the history for every turn."""
    from nemo_gym.token_id_capture.builder import run_builder

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    entries = theirs(SHAPES[shape](tokens, calls))
    last = next(entry for entry in entries if entry.model_call_id.startswith(f"call-{calls_of(shape, calls) - 1:05d}"))
    ms, peak, out = timed(lambda: run_builder(entries, terminal_call_id=last.model_call_id), fewest=0)
    return {"cpu_ms": round(ms, 2), "peak_mb": round(peak, 1), "delivered": out.notes.delivered_fraction}


def calls_of(shape: str, calls: int) -> int:
    return calls * 2 // 3 if shape == "sub-agents" else calls


def child(python: str | Path, side: str, shape: str, tokens: int, calls: int) -> dict[str, Any]:
    command = [str(python), __file__, "--side", side, shape, str(tokens), str(calls)]
    done: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return done


def results(largest: int, with_gym: bool) -> Iterator[dict[str, Any]]:
    for shape in SHAPES:
        sizes = [BOUND, *SIZES] if shape in ("store", "sliced") else SIZES
        before: tuple[int, float] | None = None
        for tokens, calls in sizes:
            if tokens > largest:
                continue
            result = child(sys.executable, "ours", shape, tokens, calls)
            if with_gym and shape in BESIDE_GYM:
                result["gym"] = beside(shape, tokens, calls, before)
                before = (tokens, result["gym"].get("cpu_ms", float("inf")))
            yield result


def beside(shape: str, tokens: int, calls: int, before: tuple[int, float] | None) -> dict[str, Any]:
    expected = 0.0 if before is None else before[1] * (tokens / before[0]) ** 2 / 1000
    if expected > LONGEST_S:
        return {"skipped": f"left out: would take {expected:.0f} s"}
    try:
        return child(GYM, "gym", shape, tokens, calls)
    except subprocess.CalledProcessError as error:
        return {"skipped": f"it died ({error.returncode}), with {MEMORY / 2**30:.0f} GB of memory"}


def linearity(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By shape: the exponent of CPU over ids in a least-squares fit, and an id's cost at the largest size over that
    at the smallest; a shape that is linear has an exponent of 1 at most and a ratio of 1 at most, noise apart."""
    fits = {}
    for shape in SHAPES:
        of = [one for one in found if one["shape"] == shape and (one["tokens"], one["calls"]) != BOUND]
        if len(of) > 1:
            exponent = np.polyfit(np.log([one["ids"] for one in of]), np.log([one["cpu_ms"] for one in of]), 1)[0]
            ratio = of[-1]["ns_per_id"] / of[0]["ns_per_id"]
            fits[shape] = {"exponent": round(float(exponent), 2), "ratio": round(ratio, 2)}
    return fits


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield (
        f"{'shape':10} {'tokens':>9} {'calls':>5} {'rows':>5} {'ids':>11} {'CPU ms':>8} {'ns/id':>6} {'peak MB':>8} "
        f"{'rows MB':>8} {'certificate':>11} {'given':>6}   {'gym CPU ms':>10} {'peak MB':>8} {'given':>6}"
    )
    for r in found:
        ours = (
            f"{r['shape']:10} {r['tokens']:9,} {r['calls']:5} {r['rows']:5} {r['ids']:11,} {r['cpu_ms']:8} "
            f"{r['ns_per_id']:6} {r['peak_mb']:8} {r['rows_mb']:8} {r['certificate_ms']:11} {r['delivered']:6}"
        )
        gym = r.get("gym", {})
        beside = f"{gym['cpu_ms']:10} {gym['peak_mb']:8} {gym['delivered']:6}" if "cpu_ms" in gym else ""
        yield f"{ours}   {beside or gym.get('skipped', '')}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--largest", type=int, default=1_000_000, help="leave out rollouts of more tokens")
    parser.add_argument("--no-gym", action="store_true", help="leave NeMo Gym's builder out")
    parser.add_argument("--side", nargs=4, metavar=("SIDE", "SHAPE", "TOKENS", "CALLS"), help="one measurement, here")
    options = parser.parse_args()
    if options.side:
        side, shape, tokens, calls = options.side
        print(json.dumps((measure if side == "ours" else measure_gym)(shape, int(tokens), int(calls))))
        return
    if not GYM.exists() and not options.no_gym:
        print(f"nemo-gym: not measured, there is no {GYM}", file=sys.stderr)
    load = os.getloadavg()[0]
    found = list(results(options.largest, GYM.exists() and not options.no_gym))
    if options.json:
        print(json.dumps({"load": [load, os.getloadavg()[0]], "fits": linearity(found), "results": found}))
        return
    print(*table(found), sep="\n")
    print(f"\nload average {load:.1f} before, {os.getloadavg()[0]:.1f} after; CPU over ids, an id at the largest size:")
    for shape, fit in linearity(found).items():
        print(f"{shape:10} exponent {fit['exponent']:5}   {fit['ratio']:5} times an id at the smallest")


if __name__ == "__main__":
    main()
