"""`rolltape gc`: remove what retention lets go of, in a directory whose gateway does not run."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rolltape.cli import terminal
from rolltape.config import Retention
from rolltape.store import CaptureStore, RetainingStore, Swept

_BATCH = 8
_DAY_SECONDS = 86_400.0
_DEFAULTS = Retention()


def gc(
    *,
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    days: Annotated[
        float, Parameter(help="Remove what a consumer accepted so many days ago or earlier; 0 = all of it.")
    ] = _DEFAULTS.days,
    quota_bytes: Annotated[
        int | None,
        Parameter(show_default=False, help="Keep so much of older rollouts that nobody accepted; all if not given."),
    ] = _DEFAULTS.quota_bytes,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False, help="Only say what would go.")] = False,
    json: terminal.Json = False,
) -> None:
    """Remove what retention lets go of."""
    before = _size(dir)
    swept = terminal.with_store(dir, lambda store: _swept(store, days * _DAY_SECONDS, quota_bytes, dry_run=dry_run))
    freed = max(0, before - _size(dir))
    if json:
        terminal.print_json(
            {
                "removed": swept.rollout_ids,
                "entries": swept.entries,
                "bytes": swept.bytes,
                "bytes_freed": freed,
                "dry_run": dry_run,
            }
        )
        return
    held = f"{len(swept.rollout_ids)} rollouts, {swept.entries} calls, {swept.bytes:,} bytes of evidence"
    outcome = f"would remove {held}" if dry_run else f"removed {held}; the directory is {freed:,} bytes smaller"
    sys.stdout.write(f"{dir}: {outcome}\n")


async def _swept(store: CaptureStore, seconds: float, quota_bytes: int | None, *, dry_run: bool) -> Swept:
    assert isinstance(store, RetainingStore)
    if dry_run:
        return await store.sweep(seconds, quota_bytes=quota_bytes, dry_run=True)
    total = Swept()
    more = True
    while more:
        swept = await store.sweep(seconds, quota_bytes=quota_bytes, limit=_BATCH)
        more = swept.more
        total = Swept(total.rollout_ids + swept.rollout_ids, total.entries + swept.entries, total.bytes + swept.bytes)
    return total


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*") if file.is_file())
