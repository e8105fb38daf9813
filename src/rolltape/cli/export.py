"""`rolltape export`: the training rows of a store as JSON lines.

The file appears whole or not at all: it is written beside its place, made durable and moved there. What a trainer
should not see by default (masked rollouts, crashed harnesses) is left out and counted aloud.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from cyclopts import Parameter

from rolltape.cli import terminal
from rolltape.cli.policy import PolicyFile, Require, policy_of
from rolltape.cli.rebuild import Form
from rolltape.errors import ConfigError
from rolltape.rebuild import DeliveryForm, KindPolicy, Verdict, meets, rebuild
from rolltape.record import TokenCaptureSnapshot
from rolltape.store import CaptureStore

STDOUT = "-"

NO_ATTEMPT = frozenset({"crashed", "could_not_start"})
"""Endings that say nothing about the policy."""


def export(
    *,
    out: Annotated[Path, Parameter(allow_leading_hyphen=True, help="The file to write; - is stdout.")],
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    rollout: Annotated[
        tuple[str, ...], Parameter(negative="", show_default=False, help="Only this rollout; may be given again.")
    ] = (),
    delivery: Form = "forest",
    policy: PolicyFile = None,
    require: Require = None,
    include_masked: Annotated[
        bool, Parameter(negative="", show_default=False, help="Write masked and excluded rollouts too.")
    ] = False,
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print what was written and left out as JSON.")
    ] = False,
) -> None:
    """Write the training rows of a store to a JSONL file, one row a line."""
    if json and str(out) == STDOUT:
        raise ConfigError("--json and --out - both write to stdout", hint="give one of them a file")

    rules = policy_of(policy)

    async def write(store: CaptureStore) -> Counter[str]:
        counts: Counter[str] = Counter()
        ids = [(await terminal.find(store, text)).rollout_id for text in rollout]
        with _whole_file(out) as file:
            for rollout_id in ids or [state.rollout_id for state in await store.rollouts()]:
                snapshot = await store.read(rollout_id)
                lines, left_out = _lines(snapshot, delivery, rules, include_masked, require)
                file.writelines(lines)
                counts["rows"] += len(lines)
                counts[left_out or "written"] += 1
        return counts

    counts = terminal.with_store(dir, write)
    rows, written = counts.pop("rows", 0), counts.pop("written", 0)
    if json:
        terminal.print_json({"out": str(out), "rows": rows, "rollouts": written, "left_out": dict(counts)})
        return
    left_out = ", ".join(f"{n} {why}" for why, n in sorted(counts.items()))
    said = f"{rows} rows of {written} rollouts written to {'stdout' if str(out) == STDOUT else out}"
    terminal.note(f"{said}; left out: {left_out}" if left_out else said)


def _lines(
    snapshot: TokenCaptureSnapshot | None,
    delivery: DeliveryForm,
    policy: KindPolicy,
    include_masked: bool,
    require: Verdict | None,
) -> tuple[list[bytes], str]:
    """The rollout's lines, and why there are none ("" = they are written)."""
    if snapshot is None or not snapshot.entries:
        return [], "empty"
    ending = snapshot.outcome.get("ending")
    if ending in NO_ATTEMPT and not include_masked:
        return [], f"{ending}".replace("_", " ")
    rebuilt = rebuild(snapshot, delivery=delivery, policy=policy)
    verdict = rebuilt.metrics["certificate"]
    if rebuilt.mask_sample and not include_masked:
        return [], "masked"
    if not meets(verdict, require):
        return [], f"{verdict}, where {require} is required"
    told = {"mask_sample": rebuilt.mask_sample, "certificate": verdict}
    rows = (row | told for row in rebuilt.delivered() if any(row["loss_mask"]))
    return [msgspec.json.encode(row) + b"\n" for row in rows], ""


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears at `path` when the block ends well, durable, and not before."""
    if str(path) == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # a device, a pipe or a folder: nothing that a file may take the place of
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()  # through links, which stay
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _named(unfinished, path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _named(unfinished: Path, path: Path) -> BinaryIO:
    """The open file; an error names the path that was asked for."""
    try:
        return unfinished.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
