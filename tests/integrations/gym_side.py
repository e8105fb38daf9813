"""What runs where Gym is installed: one command a call, its result as JSON on stdout.

    python gym_side.py COMMAND DIR

Rollouts are captured by Gym's own request path (`resolve_parent`, `register_call_intent`, `capture_tokens`) with the
sink and lineage store that a configuration of Gym's names.
"""

import asyncio
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from nemo_gym.token_id_capture import sink as gym_capture
from nemo_gym.token_id_capture.config import TokenIdCaptureConfig
from nemo_gym.token_id_capture.conformance import run_conformance
from nemo_gym.token_id_capture.consumer import trajectories_from_source
from nemo_gym.token_id_capture.lineage import FileLineageStore
from nemo_gym.token_id_capture.records import TokenEntry, compute_digest
from nemo_gym.token_id_capture.store import TokenCaptureStore as GymStore

from rolltape import record, store
from rolltape.integrations.nemo_gym import RolltapeLineage, RolltapeSink, RolltapeSource, import_gym_captures

TURNS = (([1, 2, 3], [10, 11]), ([1, 2, 3, 10, 11, 4, 5], [12]), ([1, 2, 3, 10, 11, 4, 5, 12, 6], [13, 14]))
PATH = "rolltape.integrations.nemo_gym"


def source(dir: Path) -> RolltapeSource:
    return RolltapeSource(dir=dir, settle_seconds=0.05)


def configured(dir: Path) -> TokenIdCaptureConfig:
    block = {
        "enabled": True,
        "all_agents": True,
        "sink": f"{PATH}:RolltapeSink",
        "sink_kwargs": {"dir": str(dir)},
        "lineage_store": f"{PATH}:RolltapeLineage",
        "lineage_store_kwargs": {"dir": str(dir)},
    }
    return TokenIdCaptureConfig.model_validate({"token_id_capture": block})


def built(config: TokenIdCaptureConfig) -> tuple[Any, Any]:
    """Sink and lineage store. Gym's own way to build them uses what protocols have only since Python 3.12."""
    if sys.version_info >= (3, 12):
        return config.build_sink(), config.build_lineage_store()
    settings = config.token_id_capture
    return RolltapeSink(**settings.sink_kwargs), RolltapeLineage(**settings.lineage_store_kwargs)


def answer(turn: int, prompt: list[int], generated: list[int]) -> dict[str, Any]:
    log_probs = np.linspace(-0.1, -2.7, len(generated), dtype=np.float32).tolist()
    arrays = {"prompt_token_ids": prompt, "generation_token_ids": generated, "generation_log_probs": log_probs}
    text = {"type": "output_text", "text": f"answer {turn}"}
    item = {"type": "message", "role": "assistant", "content": [text], **arrays}
    return {"id": f"resp-{turn}", "model": "policy", "output": [{"type": "reasoning", "summary": []}, item]}


async def capture(
    sink: Any, lineage: Any, rollout_id: str, turns: Collection[int] = range(3), **options: Any
) -> list[str]:
    """Those turns of a rollout by Gym's request path; returns how each found its parent."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    found = []
    for turn, (prompt, generated) in enumerate(TURNS):
        response = answer(turn, prompt, generated)
        if turn in turns:
            context = gym_capture.CaptureContext(rollout_id, f"c{turn}", sink, lineage, **options)
            token = gym_capture.set_token_sink(context)
            await gym_capture.resolve_parent(history)
            await gym_capture.register_call_intent()
            await gym_capture.capture_tokens(response, list(history))
            gym_capture.reset_token_sink(token)
            found.append(context.parent_resolution.status.value if context.committed else "not captured")
        items, _ = gym_capture.strip_token_fields(response["output"])
        history += [*items, {"role": "user", "content": f"turn {turn}"}]
    return found


async def rebuilt(dir: Path, rollout_id: str) -> dict[str, Any]:
    """Gym's own build of a rollout, read from our source, and its retirement."""
    reading = source(dir)
    build = await trajectories_from_source(rollout_id, reading)
    retired = await reading.drop(rollout_id, **build["_capture_snapshot"])
    await reading.close()
    response = build["rebuilt_response"] or {}
    told = [item for item in response.get("output", []) if item.get("generation_token_ids")]
    names = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
    return {
        "mask": build["mask_sample"],
        "turns": [{name: item[name] for name in names} for item in told],
        "delivered": build["metrics"].get("delivered_fraction"),
        "incomplete": build["metrics"].get("capture_incomplete", False),
        "retired": retired,
    }


async def conformance(dir: Path) -> list[str]:
    return await run_conformance(
        lambda: RolltapeSink(dir=dir), lambda: source(dir), lambda: RolltapeLineage(dir=dir), rollout_id="conformance"
    )


async def rollout(dir: Path, **options: Any) -> dict[str, Any]:
    sink, lineage = built(configured(dir))
    found = await capture(sink, lineage, "rollout", **options)
    stored = await sink._store.read("rollout")
    told = await rebuilt(dir, "rollout")
    refused = []
    for attempt in (sink.begin_call("rollout", "late"), source(dir).freeze("rollout")):
        try:
            await attempt
        except RuntimeError as error:
            refused.append(str(error))
    await sink.close()
    await lineage.close()
    prompts = [entry.prompt_token_ids.tolist() for entry in stored.entries]
    return told | {"found": found, "stored_prompts": prompts, "refused": refused}


async def deltas(dir: Path) -> dict[str, Any]:
    return await rollout(dir, delta_records=True)


async def first_turn(dir: Path) -> list[str]:
    return await capture(*built(configured(dir)), "rollout", turns=[0])


async def other_turns(dir: Path) -> list[str]:
    return await capture(*built(configured(dir)), "rollout", turns=[1, 2])


async def rebuild(dir: Path) -> dict[str, Any]:
    return await rebuilt(dir, "rollout")


async def conflict(dir: Path) -> str:
    sink = RolltapeSink(dir=dir)
    entry = TokenEntry(
        rollout_id="r",
        model_call_id="c",
        prompt_token_ids=[1],
        generation_token_ids=[2],
        generation_log_probs=[-0.5],
        output_items=[{"type": "message", "content": "one"}],
    )
    await sink.put(entry)
    try:
        await sink.put(entry.model_copy(update={"output_items": [{"type": "message", "content": "two"}]}))
    except ValueError as error:
        return str(error)
    finally:
        await sink.close()
    return "accepted"


async def write_captures(dir: Path) -> None:
    """Gym's own files: a whole rollout, one in deltas, one with a lost call and a mark."""
    files, lineage = GymStore(dir), FileLineageStore(dir)
    await capture(files, lineage, "whole")
    await capture(files, lineage, "deltas", delta_records=True)
    await capture(files, lineage, "lost")
    await files.begin_call("lost", "c3")
    await files.mark_incomplete("lost", "c4")
    await files.freeze("whole")


async def imported(dir: Path) -> dict[str, Any]:
    """Gym's files through our store: are the same entries read that Gym itself reads?"""
    await write_captures(dir / "gym")
    ours = store.TokenCaptureStore(dir / "ours")
    reports = await import_gym_captures(dir / "gym", ours)
    again = await import_gym_captures(dir / "gym", ours)
    await ours.close()
    same, reading = {}, source(dir / "ours")
    for report in reports:
        wanted = [entry.model_dump(mode="json") for entry in GymStore(dir / "gym").read_entries(report.rollout_id)]
        read = (await reading.freeze(report.rollout_id)).entries
        same[report.rollout_id] = [entry.model_dump(mode="json") for entry in read] == wanted
    await reading.close()
    builds = {name: await rebuilt(dir / "ours", name) for name in same}
    return {"same": same, "again": again == reports, "built": builds}


async def gateway(dir: Path) -> dict[str, Any]:
    """Calls that our gateway captured, one of them cancelled, read by Gym."""
    ours = store.TokenCaptureStore(dir)
    for turn, (prompt, generated) in enumerate(TURNS):
        log_probs = np.full(len(generated), -0.25, np.float32)
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"{turn}"}]}
        await ours.put(
            record.TokenEntry(
                rollout_id="gateway",
                model_call_id=f"c{turn}",
                prompt_token_ids=prompt,
                generation_token_ids=generated,
                generation_log_probs=log_probs,
                created_at=float(turn),
                output_items=(item,),
            )
        )
    await ours.put(
        record.TokenEntry(
            rollout_id="gateway",
            model_call_id="gone",
            prompt_token_ids=[1, 2, 3],
            generation_token_ids=[77],
            generation_log_probs=np.array([-1.0], np.float32),
            outcome=record.Outcome.CANCELLED,
        )
    )
    await ours.close()
    return await rebuilt(dir, "gateway")


async def played(dir: Path) -> dict[str, Any]:
    """Gym's build of rollout t-0, from the entries in `entries.jsonl`."""
    ours = store.TokenCaptureStore(dir)
    for line in (dir / "entries.jsonl").read_text().splitlines():
        await ours.put(record.TokenEntry.from_json(json.loads(line)))
    await ours.close()
    told = await rebuilt(dir, "t-0")
    return {"mask": told["mask"], "delivered": told["delivered"]}


async def digests(dir: Path) -> list[str]:
    return [compute_digest(list(range(length))) for length in (0, 1, 1000)]


COMMANDS = {
    command.__name__: command
    for command in (
        *(conformance, rollout, deltas, first_turn, other_turns, rebuild),
        *(conflict, write_captures, imported, gateway, played, digests),
    )
}

if __name__ == "__main__":
    command, dir = COMMANDS[sys.argv[1]], Path(sys.argv[2])
    print(json.dumps(asyncio.run(command(dir))))
