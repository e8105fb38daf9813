"""`rolltape demo`: everything at once, for real. A third-party harness, a model that samples, checks that judge.

The same run as `rolltape run` would make; what is added is the look at the result: the rollouts, one call tree, one
training row with its mask, and what to type next.
"""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolltape.cli import terminal
from rolltape.cli.demo.picture import longest, outcomes, row_picture
from rolltape.cli.look import call_tree
from rolltape.cli.run import confined, here, interruptible, profile_named, run_plan
from rolltape.config import read_config
from rolltape.engines.llamacpp.models import ensure_model
from rolltape.errors import ConfigError
from rolltape.rebuild import Rebuilt, rebuild
from rolltape.record import TokenCaptureSnapshot
from rolltape.rollouts import Plan, Summary, read_tasks
from rolltape.store import CaptureStore

TASKS = Path(__file__).parent / "tasks.jsonl"
HARNESS, HARNESS_CONFIG = "mini-swe-agent", "smollm2"
GROUP_SIZE = 8
AT_ONCE = 3
"""Rollouts at a time: what keeps two cores busy."""
TIME_LIMIT = 300.0
ENGINE_OPTIONS = {"context": 2048, "cache_prompt": True}
"""Short prompts that all begin alike."""
PREFIX_BREAK = "At a prefix break the harness left an earlier reply out of its prompt: a new training row begins there."
INSTALL = "pip install 'rolltape[demo]'"


def demo(*, dir: terminal.Dir = terminal.DEFAULT_DIR, json: terminal.Json = False) -> None:
    """See it work: a real harness on a real small model, captured, rebuilt and rewarded."""
    began = time.monotonic()
    summary = _run(dir)
    ids = [row["_ng_rollout_id"] for row in summary.rows]
    found = terminal.with_store(dir, lambda store: _read(store, ids))
    rebuilt = {snapshot.rollout_id: rebuild(snapshot) for snapshot in found}
    if json:
        terminal.print_json(_json(summary, rebuilt, time.monotonic() - began))
    else:
        _picture(summary, found, rebuilt, dir)
    if not any(row["reward"] is not None for row in summary.rows):
        reason = summary.rows[0].get("excluded_reason")
        terminal.fail(f"no rollout got as far as a reward: {reason}", f"see {dir / 'workspaces'}")


def _run(directory: Path) -> Summary:
    try:
        profile = profile_named(HARNESS)
    except ConfigError as error:
        raise ConfigError(f"the demo needs {HARNESS}", hint=INSTALL) from error
    ensure_model(progress=terminal.note)
    config = read_config(
        None, engine_kind="llamacpp", engine_options=ENGINE_OPTIONS, dir=str(directory), port=0, auth="keys"
    )
    tasks = read_tasks(TASKS)
    terminal.note(f"{profile.name} {profile.version} over {len(tasks)} tasks, {GROUP_SIZE} attempts each")
    results = directory / "demo.jsonl"
    if results.exists():
        terminal.note(f"going on from {results}; another --dir starts anew")

    async def within() -> Summary:
        async with here(config, profile) as site:
            plan = Plan(
                tasks=tasks,
                profile=profile,
                model=site.model,
                out=results,
                directory=directory,
                group_size=GROUP_SIZE,
                concurrency=AT_ONCE,
                config=profile.find_config(HARNESS_CONFIG),
                context_length=site.context_length,
                sandbox=await confined("auto", profile, directory, (directory, results)),
                time_limit=TIME_LIMIT,
            )
            return await run_plan(plan, site)

    return interruptible(within)


async def _read(store: CaptureStore, ids: Sequence[str]) -> list[TokenCaptureSnapshot]:
    snapshots = [await store.read(rollout_id, texts=True) for rollout_id in ids]
    return [snapshot for snapshot in snapshots if snapshot is not None]


def _json(summary: Summary, rebuilt: dict[str, Rebuilt], seconds: float) -> dict[str, Any]:
    """The run's own numbers, and those of the rows that `export` gives: each sampled token owned once."""
    sampled = sum(one.metrics["generated_tokens_captured"] for one in rebuilt.values())
    owned = sum(one.metrics["generated_tokens_delivered"] for one in rebuilt.values())
    rows = sum(len(one.rows) for one in rebuilt.values())
    return summary.to_json() | {
        "delivery": "forest",
        "rows": rows,
        "generated_tokens_captured": sampled,
        "generated_tokens_delivered": owned,
        "delivered_fraction": owned / sampled if sampled else None,
        "seconds": round(seconds, 1),
    }


def _picture(
    summary: Summary, snapshots: Sequence[TokenCaptureSnapshot], rebuilt: dict[str, Rebuilt], directory: Path
) -> None:
    console = terminal.out()
    console.print("\n[bold]The rollouts[/]\n")
    console.print(outcomes(summary, rebuilt))
    chosen = longest(snapshots, rebuilt)
    if chosen is None:
        return
    row = max(rebuilt[chosen.rollout_id].rows, key=lambda row: len(row.spans))
    console.print("\n[bold]One call tree[/]: a call hangs below the one whose tokens its prompt repeats exactly\n")
    console.print(call_tree(rebuilt[chosen.rollout_id]))
    if rebuilt[chosen.rollout_id].prefix_breaks:
        console.print(f"\n{PREFIX_BREAK}")
    console.print(f"\n[bold]One row[/]: {len(row.token_ids)} tokens, {row.loss_tokens} of them trained\n")
    console.print(row_picture(row, chosen))
    console.print("\n[bold]Next[/]\n")
    for command in next_commands(chosen.rollout_id, directory):
        console.print(f"  {command}", soft_wrap=True)


def next_commands(rollout_id: str, directory: Path) -> list[str]:
    """Three commands to try, ready to be pasted."""
    near = Path(sys.argv[0]).is_relative_to(Path.cwd())
    program = "rolltape" if shutil.which("rolltape") else os.path.relpath(sys.argv[0]) if near else sys.argv[0]
    where = "" if directory == terminal.DEFAULT_DIR else f" --dir {directory}"
    return [
        f"{program} show {rollout_id}{where}",
        f"{program} rebuild --rollout {rollout_id}{where} --json",
        f"{program} export{where} --out rows.jsonl",
    ]
