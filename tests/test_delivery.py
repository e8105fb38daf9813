"""Finalize, hand off, retire: the record a trainer reads, and evidence that is never dropped too early."""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolltape.delivery import (
    Built,
    finalize_rollout_token_capture,
    install_token_source,
    installed_token_source,
    retire_rollout_token_capture,
    rollout_id_of,
    token_capture_metrics,
)
from rolltape.errors import RetiredError
from rolltape.record import TokenCaptureSnapshot, TokenEntry
from rolltape.store.sqlite import TokenCaptureStore


def call(name: str, prompt: Sequence[int], generation: Sequence[int], **more: Any) -> TokenEntry:
    fields: dict[str, Any] = {"generation_log_probs": [-0.5] * len(generation)} | more
    return TokenEntry(
        rollout_id="3-0",
        model_call_id=name,
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        **fields,
    )


TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "looking"}]}
TOOL = {"type": "function_call", "call_id": "t1", "name": "bash", "arguments": "{}"}
C1 = call("c1", [1, 2, 3], [10, 11], output_items=(TEXT, TOOL), response_id="reply-1")
C2 = call("c2", [1, 2, 3, 10, 11, 4], [12], response_id="reply-2")
DONE = (C1, C2)


class Source:
    """Rollouts in a dict, with a version that a late write advances."""

    def __init__(self, *entries: TokenEntry, incomplete: bool = False) -> None:
        self.entries = entries
        self.incomplete = incomplete
        self.version = 1
        self.frozen: list[str] = []
        self.dropped = False

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        self.frozen.append(rollout_id)
        return TokenCaptureSnapshot(rollout_id, self.entries, self.incomplete, f"snap-{self.version}", self.version)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        self.dropped = (snapshot_id, version) == (f"snap-{self.version}", self.version)
        return self.dropped

    async def close(self) -> None: ...


class Failing(Source):
    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        raise ConnectionError("the source is down")


def record(**more: Any) -> dict[str, Any]:
    return {"_ng_rollout_id": "3-0", "reward": 1.0, "response": {"id": "x", "output": [{"type": "message"}]}} | more


async def finalized(result: dict[str, Any], source: Source) -> Built:
    built = await finalize_rollout_token_capture(result, source)
    assert built is not None
    return built


async def test_the_output_becomes_contiguous_items_that_carry_the_exact_tokens() -> None:
    result = record()
    await finalized(result, Source(*DONE))
    text, tool, last = result["response"]["output"]
    assert text == TEXT
    assert tool == TOOL | {
        "prompt_token_ids": [1, 2, 3],
        "generation_token_ids": [10, 11],
        "generation_log_probs": [-0.5, -0.5],
    }
    assert last["prompt_token_ids"][:5] == tool["prompt_token_ids"] + tool["generation_token_ids"]
    assert (last["type"], last["prompt_token_ids"], last["generation_token_ids"]) == (
        "message",
        [1, 2, 3, 10, 11, 4],
        [12],
    )
    assert result["response"]["id"] == "x"
    json.dumps(result, allow_nan=False)


async def test_a_healthy_record_has_metrics_and_no_mask_key() -> None:
    result = record()
    built = await finalized(result, Source(*DONE))
    metrics = result["_ng_token_capture"]
    assert (metrics["n_calls"], metrics["chains"], metrics["delivered_fraction"]) == (2, 1, 1.0)
    assert not {"mask_sample", "error", "capture_incomplete"} & (result.keys() | metrics.keys())
    assert built.retirable


async def test_the_original_output_is_replaced_in_the_record_and_not_changed_in_place() -> None:
    original = record()
    kept = original["response"]["output"]
    await finalized(original, Source(*DONE))
    assert kept == [{"type": "message"}]


async def test_a_call_without_loss_keeps_its_words_and_carries_no_tokens() -> None:
    result = record()
    await finalized(result, Source(C1.with_(generation_log_probs=[-0.5]), C2))
    assert ["generation_token_ids" in item for item in result["response"]["output"]] == [False, False, True]


async def test_the_reply_id_in_the_harness_output_names_the_terminal_call() -> None:
    title = call("t1", [1, 95], [70, 2], created_at=9.0)
    result = record(response={"id": "reply-2", "output": []})
    built = await finalized(result, Source(C1, C2, title))
    assert built.metrics["terminal_attribution"] == {
        "method": "response_id",
        "call_id": "c2",
        "reason": "",
        "chain": "delivered",
    }


@pytest.mark.parametrize("key", ["_ng_terminal_model_call_id", "terminal_response_id"])
async def test_a_terminal_call_that_was_not_captured_masks(key: str) -> None:
    result = record(**{key: "ghost"})
    built = await finalized(result, Source(*DONE))
    assert result["mask_sample"] is True
    assert not built.retirable


async def test_a_mask_that_was_there_stays() -> None:
    result = record(mask_sample=True)
    built = await finalized(result, Source(*DONE))
    assert (result["mask_sample"], built.mask_sample) == (True, False)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (Source(), "capture contains no token records"),
        (Source(call("e", [1], [])), "capture produced no trainable generated tokens"),
        (Failing(), "ConnectionError: the source is down"),
    ],
)
async def test_what_cannot_be_rebuilt_is_masked_with_its_reason(source: Source, error: str) -> None:
    result = record()
    built = await finalized(result, source)
    assert result["mask_sample"] is True
    assert result["_ng_token_capture"]["error"] == error
    assert result["response"]["output"] == [{"type": "message"}]
    assert not await retire_rollout_token_capture("3-0", source, built)
    assert not source.dropped


async def test_a_lost_call_masks_the_record_and_keeps_its_evidence() -> None:
    result, source = record(), Source(*DONE, incomplete=True)
    built = await finalized(result, source)
    assert (result["mask_sample"], result["_ng_token_capture"]["capture_incomplete"]) == (True, True)
    assert not await retire_rollout_token_capture("3-0", source, built)


@pytest.mark.parametrize(
    ("keys", "rollout_id"),
    [
        ({"_ng_rollout_id": "step3.7-0"}, "step3.7-0"),
        ({"_ng_task_index": 7, "_ng_rollout_index": 0}, "7-0"),
        ({"task_index": 7, "rollout_index": 2}, "7-2"),
        ({"_ng_task_index": 7, "_ng_rollout_index": 0, "_ng_attempt_index": 0}, "7-0"),
        ({"_ng_task_index": 7, "_ng_rollout_index": 0, "_ng_attempt_index": 2}, "7-0-a2"),
        ({"_ng_rollout_id": "mine", "_ng_task_index": 1, "_ng_rollout_index": 1}, "mine"),
        ({"_ng_task_index": 7}, None),
    ],
)
def test_a_rollout_id_is_explicit_or_made_of_the_indices(keys: dict[str, Any], rollout_id: str | None) -> None:
    assert rollout_id_of(keys) == rollout_id


@pytest.mark.parametrize("bad", ["../etc", "-x", "", 7, "a b", "a" * 201])
async def test_a_malformed_id_is_refused_and_never_rewritten(bad: object) -> None:
    result, source = record(_ng_rollout_id=bad), Source(*DONE)
    built = await finalized(result, source)
    assert result["_ng_token_capture"]["error"] == f"malformed rollout id: {bad!r}"
    assert (result["mask_sample"], source.frozen, built.retirable) == (True, [], False)


async def test_a_record_without_an_id_is_masked() -> None:
    result: dict[str, Any] = {"response": {"output": []}}
    built = await finalized(result, Source(*DONE))
    assert (built.error, result["mask_sample"]) == ("no capture key", True)


async def test_a_derived_id_is_written_into_the_record() -> None:
    result = {"task_index": 3, "rollout_index": 0}
    await finalized(result, source := Source(*DONE))
    assert (result["_ng_rollout_id"], source.frozen) == ("3-0", ["3-0"])


async def test_native_token_ids_are_left_alone_and_may_be_retired() -> None:
    result, source = record(response={"output": [{"generation_token_ids": [5]}]}), Source(*DONE)
    built = await finalized(result, source)
    assert result["response"]["output"] == [{"generation_token_ids": [5]}]
    assert "_ng_token_capture" not in result
    assert await retire_rollout_token_capture("3-0", source, built)


async def test_finalizing_twice_changes_nothing_more() -> None:
    result, source = record(), Source(*DONE)
    await finalized(result, source)
    once = json.dumps(result)
    await finalized(result, source)
    assert json.dumps(result) == once


async def test_without_a_source_nothing_happens() -> None:
    result = record()
    assert await finalize_rollout_token_capture(result, None) is None
    assert result == record()
    assert not await retire_rollout_token_capture("3-0", None, None)


async def test_only_the_state_that_was_rebuilt_is_dropped() -> None:
    source = Source(*DONE)
    built = await finalized(record(), source)
    assert not await retire_rollout_token_capture("another", source, built)
    source.version += 1  # a late write
    assert not await retire_rollout_token_capture("3-0", source, built)
    source.version -= 1
    assert await retire_rollout_token_capture("3-0", source, built)


async def test_a_forest_leaves_the_output_and_gives_rows() -> None:
    result = record()
    built = await finalize_rollout_token_capture(result, Source(*DONE), delivery="forest")
    assert built is not None
    assert built.rebuilt is not None
    assert [row.model_call_ids for row in built.rebuilt.rows] == [("c1", "c2")]
    assert result["response"]["output"] == [{"type": "message"}]


async def test_assembly_runs_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    import rolltape.delivery as delivery

    threads: list[threading.Thread] = []
    real: Callable[..., Any] = delivery.rebuild
    monkeypatch.setattr(
        delivery, "rebuild", lambda *a, **k: (threads.append(threading.current_thread()), real(*a, **k))[1]
    )
    await finalized(record(), Source(*DONE))
    assert threads
    assert threads[0] is not threading.main_thread()


async def test_cancelling_a_finalization_is_no_failed_build() -> None:
    class Slow(Source):
        async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
            await asyncio.sleep(60)
            raise AssertionError

    result = record()
    task = asyncio.ensure_future(finalize_rollout_token_capture(result, Slow()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert result == record()


def test_a_source_is_installed_for_the_whole_process_and_taken_away_again() -> None:
    source = Source()
    install_token_source(source)
    assert installed_token_source() is source
    install_token_source(None)
    assert installed_token_source() is None


async def test_a_step_is_counted_over_its_rollouts() -> None:
    title = call("t1", [1, 95], [70], kind="title")
    sources = [Source(*DONE), Source(*DONE, title), Source(*DONE, incomplete=True), Failing()]
    builds = [await finalize_rollout_token_capture(record(), source) for source in sources]
    assert token_capture_metrics([*builds, None]) == {
        "token_capture/rollouts_rebuilt": 3,
        "token_capture/rollouts_unbuilt": 2,
        "token_capture/rebuilt_fraction": 0.6,
        "token_capture/empty_generation_calls": 0,
        "token_capture/parent_link_failures": 0,
        "token_capture/masked_rollouts": 2,
        "token_capture/incomplete_rollouts": 1,
        "token_capture/calls_per_rollout_mean": pytest.approx(7 / 3),
        "token_capture/chains_per_rollout_mean": pytest.approx(4 / 3),
        "token_capture/delivered_fraction_mean": pytest.approx((1 + 0.75 + 1) / 3),
        "token_capture/quarantined_fraction_mean": pytest.approx(0.3333 / 3),
    }
    assert token_capture_metrics([]) == {}
    assert "token_capture/delivered_fraction_mean" not in token_capture_metrics([None])


async def test_over_the_default_store_a_rollout_is_rebuilt_to_the_token_and_then_gone_for_every_source(
    tmp_path: Path,
) -> None:
    async with TokenCaptureStore(tmp_path) as store:
        for entry in DONE:
            await store.begin_call("3-0", entry.model_call_id)
            await store.put(entry)
        result = record()
        built = await finalize_rollout_token_capture(result, store)
        assert built is not None
        assert result["_ng_token_capture"]["delivered_fraction"] == 1.0
        assert [item.get("generation_token_ids") for item in result["response"]["output"]] == [None, [10, 11], [12]]
        assert await retire_rollout_token_capture("3-0", store, built)
        assert not await retire_rollout_token_capture("3-0", store, built)
        with pytest.raises(RetiredError):
            await store.freeze("3-0")


async def test_over_the_default_store_a_late_write_keeps_the_evidence(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path) as store:
        for entry in DONE:
            await store.begin_call("3-0", entry.model_call_id)
        await store.put(C1)
        await store.put(C2)
        built = await finalize_rollout_token_capture(record(), store)
        await store.put(call("late", [1, 2, 3, 10, 11, 4, 12, 5], [13]))
        assert not await retire_rollout_token_capture("3-0", store, built)
        again = await finalize_rollout_token_capture(record(), store)
        assert again is not None
        assert again.metrics["n_calls"] == 3
        assert await retire_rollout_token_capture("3-0", store, again)


async def test_over_the_default_store_an_intent_without_an_outcome_masks(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path, settle_seconds=0.05) as store:
        await store.begin_call("3-0", "c1")
        await store.put(C1)
        await store.begin_call("3-0", "lost")
        result = record()
        built = await finalize_rollout_token_capture(result, store)
        assert (result["mask_sample"], result["_ng_token_capture"]["capture_incomplete"]) == (True, True)
        assert not await retire_rollout_token_capture("3-0", store, built)
