"""Finalizing a rollout names its breaks: the texts that a frozen snapshot lacks are read where something broke."""

from rolltape.delivery import finalize_rollout_token_capture
from rolltape.rebuild.breaks import Cause
from rolltape.store import TokenCaptureStore

from . import edits


async def test_the_record_of_a_rollout_counts_its_breaks_by_cause(tmp_path):
    (_, case) = edits.cases(Cause.SYSTEM_PROMPT_VOLATILE, count=1)[0]
    result = {"_ng_rollout_id": "r"}
    async with TokenCaptureStore(tmp_path / "store") as store:
        for entry in (*case.before, case.last):
            await store.put(entry)
        built = await finalize_rollout_token_capture(result, store, delivery="forest")

    assert built is not None
    assert result["_ng_token_capture"]["prefix_breaks"] == {"system_prompt_volatile": 1}
    assert [one.cause for one in built.rebuilt.prefix_breaks] == ["system_prompt_volatile"]


async def test_without_kept_texts_finalizing_goes_on_and_the_cause_is_unknown(tmp_path):
    (_, case) = edits.cases(Cause.SYSTEM_PROMPT_VOLATILE, count=1)[0]
    result = {"_ng_rollout_id": "r"}
    async with TokenCaptureStore(tmp_path / "store") as store:
        for entry in (*case.before, case.last):
            await store.put(entry.with_(request_text=None))
        await finalize_rollout_token_capture(result, store, delivery="forest")

    assert result["_ng_token_capture"]["prefix_breaks"] == {"unknown": 1}
    assert "error" not in result["_ng_token_capture"]
