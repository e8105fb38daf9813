"""Replies that broke off, and what each harness makes of them: told by tokens, whatever it writes into its history.

Every test ends the same way: no rollout is masked, every sampled token of a completed call has exactly one owner, and a
broken reply's ids own nothing and are found again in the prompts that hold them.
"""

import asyncio

import pytest

from rolltape.rebuild import rebuild
from rolltape.record import Delivery, Outcome
from rolltape.testing.scripted import Fault, Step, encode

from .conftest import until
from .talk import Prompted, Talk

CUT = "I will look int"


def breaks(text: str, after: int, **fields) -> Step:
    return Step(text=text, fault=Fault.DIE_MID_STREAM, after=after, **fields)


async def seen_through(talk: Talk):
    """The rebuilt forest; the calls in their order, each (status, reason, kept, sampled)."""
    entries = await talk.entries()
    result = rebuild(await talk.lab.store.freeze("R1"))
    assert not result.mask_sample
    assert result.metrics["delivered_fraction"] == 1.0
    owners = [(one.model_call_id, at) for one in result.ledger if one.row_id for at in range(one.start, one.end)]
    assert len(owners) == len(set(owners)) == sum(row.loss_tokens for row in result.rows)
    nodes = {node.model_call_id: node for node in result.tree}
    ordered = [nodes[entry.model_call_id] for entry in entries]
    return result, [(node.status.value, node.reason, node.kept_tokens, node.sampled_tokens) for node in ordered]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_claude_code_keeps_the_finished_text_of_a_cut_stream(gateway):
    """Its text block had ended, the tool call had not: the text becomes a turn, and the model is told to resume."""
    text = "I will look into it."
    body = {"model": "scripted", "max_tokens": 99, "messages": [user("go")], "stream": True}
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        calls = (("Bash", '{"command": "ls -la"}'),)
        lab.engine.steps.extend(
            [breaks(text, len(text) + 12, tool_calls=calls), Step(text="Resumed."), Step(text="End.")]
        )
        url = f"{lab.url}/rollout/R1/v1/messages"
        async with lab.http.post(url, json=body) as response:
            seen = await response.text()
        assert "event: error" in seen
        assert seen.count("event: content_block_stop") == 1, (
            "the text has ended, and a call that is not whole never does"
        )
        resume = user("Your response above was cut off mid-stream. Resume directly")
        body["messages"] += [{"role": "assistant", "content": text}, resume]
        async with lab.http.post(url, json=body | {"stream": False}) as response:
            told = await response.json()
        body["messages"] += [{"role": "assistant", "content": told["content"]}, user("more")]
        async with lab.http.post(url, json=body | {"stream": False}) as response:
            assert response.status == 200
        result, calls = await seen_through(talk)
    assert calls[0] == ("failed", "outcome: failed", len(text), len(text) + 12)
    assert (len(result.rows), [status for status, *_ in calls]) == (1, ["failed", "trained", "trained"])


async def test_codex_keeps_the_finished_items_of_a_reply_whose_end_it_never_saw(gateway):
    """The message item had arrived, the function call had not: the item stays, and the request goes out again."""
    tools = [{"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}}]
    body = {"model": "scripted", "input": [user("go")], "tools": tools, "store": False}
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        call = (("bash", '{"command": "ls"}'),)
        lab.engine.steps.extend([Step(text="I look.", tool_calls=call), Step(tool_calls=call), Step(text="Done.")])
        for _ in range(2):
            async with lab.http.post(f"{lab.url}/rollout/R1/v1/responses", json=body) as response:
                output = (await response.json())["output"]
            body["input"] += [output[0]]
        body["input"] += [{"type": "function_call_output", "call_id": output[0]["call_id"], "output": "a"}]
        async with lab.http.post(f"{lab.url}/rollout/R1/v1/responses", json=body) as response:
            assert response.status == 200
        result, calls = await seen_through(talk)
    kept = len("I look.")
    assert calls[0][::2] == ("trained", kept), "the whole reply was sampled by the policy, and sent"
    assert calls[0][3] > kept
    assert [len(row.model_call_ids) for row in result.rows] == [2, 1]


async def test_qwen_code_merges_the_part_and_its_continuation(gateway):
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        await talk.work(1)
        before = list(talk.messages)
        assert b'"error"' in await talk.listen(breaks("I will look into the rest.", len(CUT)))
        talk.messages += [{"role": "assistant", "content": CUT}, user("The connection dropped mid-response")]
        rest = await talk.ask(Step(text="o the rest.", tool_calls=(("bash", "{}"),)))
        talk.messages = before
        talk.keep(rest, content=CUT + rest["content"])
        await talk.finish()
        result, calls = await seen_through(talk)
    assert [status for status, *_ in calls] == ["trained", "failed", "trained", "trained"]
    assert calls[1][1:] == ("outcome: failed", len(CUT), len(CUT))
    assert len(result.rows) == 2, "the continuation was asked for in one history, and lives on in another"


async def test_qwen_code_asks_again_with_more_room_after_a_reply_that_was_too_long(gateway):
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        await talk.ask(Step(text="A long answer", finish_reason="length"), max_tokens=32000)
        talk.keep(await talk.ask(Step(text="A long answer indeed"), max_tokens=64000))
        talk.messages.append(user("more"))
        await talk.finish()
        result, calls = await seen_through(talk)
    assert [status for status, *_ in calls] == ["rejected", "trained", "trained"]
    assert calls[0][2:] == (13, 13), "its ids are the head of the turn that was kept"
    assert len(result.rows) == 2


@pytest.mark.parametrize("aborted", ["empty", "tool"])
async def test_opencode_puts_the_aborted_attempt_before_the_good_turn(gateway, aborted):
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        await talk.work(1)
        await talk.listen(breaks("I look", 8, tool_calls=(("bash", '{"command": "ls"}'),)))
        good = await talk.ask(talk.look())
        if aborted == "empty":
            talk.messages.append({"role": "assistant", "content": ""})
        else:
            call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            talk.keep({"role": "assistant", "content": "I look", "tool_calls": [call]}, "Tool execution aborted")
        talk.keep(good)
        await talk.finish()
        result, calls = await seen_through(talk)
    assert [status for status, *_ in calls] == ["trained", "failed", "trained", "trained"]
    assert calls[1][2:] == ((0, 8) if aborted == "empty" else (8, 8))
    assert sorted(len(row.model_call_ids) for row in result.rows) == [2, 2]


async def test_cline_merges_the_part_with_the_retrys_reply(gateway):
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        await talk.work(1)
        await talk.listen(breaks("I will look into the rest.", len(CUT)))
        good = await talk.ask(talk.look("I look at the rest."))
        talk.keep(good, content=CUT + good["content"])
        await talk.finish()
        result, calls = await seen_through(talk)
    assert [status for status, *_ in calls] == ["trained", "failed", "trained", "trained"]
    assert calls[1][2:] == (len(CUT), len(CUT))
    assert sorted(len(row.model_call_ids) for row in result.rows) == [2, 2]


async def test_a_client_that_hangs_up_and_keeps_what_it_had_is_told_by_the_ids(gateway):
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        await talk.listen(Step(text="abcdefgh" * 40, delay=0.01), until_seen=b"abcd")
        await until(lambda: lab.engine.aborted == 1)
        talk.messages += [{"role": "assistant", "content": "abcd"}, user("Go on.")]
        await talk.finish()
        result, calls = await seen_through(talk)
        (cancelled, _) = await lab.entries()
    assert cancelled.outcome is Outcome.CANCELLED
    assert cancelled.generation_token_ids[:4].tolist() == encode("abcd")
    assert calls[0][:3] == ("cancelled", "outcome: cancelled", 4)
    assert result.metrics["outcomes"] == {"cancelled": 1, "completed": 1}


async def lost_on_its_way(talk: Talk, step: Step, monkeypatch) -> None:
    """A whole reply is sampled and recorded, and its client is gone before it can be sent."""
    put, gone = talk.lab.store.put, asyncio.Event()

    async def put_late(entry):
        await gone.wait()
        await put(entry)

    monkeypatch.setattr(talk.lab.store, "put", put_late)
    before = talk.lab.engine.finished
    asking = asyncio.create_task(talk.ask(step))
    await until(lambda: talk.lab.engine.finished == before + 1)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(0.2)  # for the gateway to hear of it
    gone.set()


@pytest.mark.parametrize(
    ("how", "again", "reason"),
    [
        ("stream", "A reply.", "outcome: cancelled"),
        ("whole", "A reply.", "duplicate"),
        ("whole", "Another reply.", "abandoned"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
async def test_a_retry_after_a_lost_reply_makes_no_second_owner(gateway, monkeypatch, how, again, reason, last):
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        await talk.work(1)
        if how == "stream":
            await talk.listen(Step(text="A reply.", delay=0.2), until_seen=b'"content":"A')
        else:
            await lost_on_its_way(talk, Step(text="A reply."), monkeypatch)
        talk.keep(await talk.ask(Step(text=again), headers={"x-stainless-retry-count": "1"}))
        if not last:
            talk.messages.append(user("more"))
            await talk.finish()
        lost = (await talk.entries())[1]
        result = rebuild(await lab.store.freeze("R1"))
    assert lost.delivery is Delivery.UNDELIVERED
    assert not result.mask_sample
    (row,) = result.rows
    assert len(row.model_call_ids) == (2 if last else 3)
    unowned = [one for one in result.ledger if one.row_id is None]
    assert [(one.model_call_id, one.reason.partition(": ")[0]) for one in unowned] == [
        (lost.model_call_id, reason.partition(": ")[0])
    ]
