"""What happens to ordinary agents, over HTTP: each event in an otherwise perfect rollout, and what is trained after it.

The numbers stand in `docs/guides/what-masks.md`, a table row an event; these tests hold them.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from rolltape.delivery import Built, finalize_rollout_token_capture
from rolltape.record import Delivery, Outcome
from rolltape.testing.scripted import Fault, Step, log_prob

from .talk import Prompted, Talk

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "what-masks.md"

ENDED_OTHERWISE = (
    "one HTTP 500, retried",
    "the last call overflows the context",
    "a client leaves in mid-reply and asks again",
)

Event = Callable[[Talk], Awaitable[None]]
EVENTS: dict[str, Event] = {}


def event(name: str) -> Callable[[Event], Event]:
    def keep(play: Event) -> Event:
        EVENTS[name] = play
        return play

    return keep


@event("clean loop of five calls")
async def clean(talk: Talk) -> None:
    await talk.work(4)
    await talk.finish()


@event("one HTTP 500, retried")
async def one_500(talk: Talk) -> None:
    await talk.work(2)
    await talk.ask(Step(fault=Fault.ERROR_500), status=500)
    await talk.work(2)
    await talk.finish()


@event("the last call overflows the context")
async def last_overflows(talk: Talk) -> None:
    await talk.work(4)
    await talk.ask(Step(fault=Fault.OVERFLOW), status=400)


@event("GETs of a served and of an unknown path")
async def undeclared_get(talk: Talk) -> None:
    await talk.work(2)
    for path, status in (("v1/models", 200), ("api/tags", 404), ("v1/usage", 404)):
        async with talk.lab.http.get(f"{talk.lab.url}/rollout/R1/{path}") as response:
            assert response.status == status
    await talk.work(2)
    await talk.finish()


@event("a title is made first")
async def title_first(talk: Talk) -> None:
    ask = {"model": "scripted", "max_tokens": 64, "messages": [{"role": "user", "content": "Count the files."}]}
    talk.lab.engine.steps.append(Step(text='{"title": "Counting"}'))
    headers = {"user-agent": "claude-cli/2.1.332 (external, sdk-cli)", "x-claude-code-session-id": "s"}
    body = ask | {"output_config": {"format": {"type": "json_schema", "schema": {"properties": {"title": {}}}}}}
    async with talk.lab.http.post(f"{talk.lab.url}/rollout/R1/v1/messages", json=body, headers=headers) as response:
        assert response.status == 200
    await clean(talk)


@event("a sub-agent with three calls")
async def sub_agent(talk: Talk) -> None:
    await talk.work(2)
    child = Talk(talk.lab, messages=[{"role": "user", "content": "Look into the folder."}])
    child.turns = 10
    await child.work(2)
    await child.finish("It holds four files, all of them small.")
    await talk.work(2)
    await talk.finish()


@event("compaction: the oldest turns are dropped")
async def oldest_dropped(talk: Talk) -> None:
    await talk.work(3)
    del talk.messages[2:4]
    await talk.work(1)
    await talk.finish()


@event("microcompaction: one old tool result is cleared")
async def result_cleared(talk: Talk) -> None:
    await talk.work(3)
    talk.messages[3]["content"] = "[cleared]"
    await talk.work(1)
    await talk.finish()


@event("compaction to a summary")
async def summarised(talk: Talk) -> None:
    await talk.work(3)
    talk.messages.append({"role": "user", "content": "Summarise what you did."})
    summary = await talk.ask(Step(text="I looked at three parts: 1, 2 and 3."))
    talk.messages[1:] = [{"role": "user", "content": f"So far: {summary['content']}"}]
    await talk.work(1)
    await talk.finish()


@event("a reminder that the next request no longer holds")
async def reminder(talk: Talk) -> None:
    await talk.work(2)
    talk.messages.append({"role": "user", "content": "<system-reminder>Be brief.</system-reminder>"})
    message = await talk.ask(talk.look())
    talk.messages.pop()
    talk.keep(message)
    await talk.work(1)
    await talk.finish()


@event("the harness strips a turn's trailing space")
async def stripped(talk: Talk) -> None:
    await talk.work(2)
    message = await talk.ask(talk.look("Now the third part. "))
    talk.keep(message, content=message["content"].strip())
    await talk.work(1)
    await talk.finish()


@event("the template renders a turn in other tokens")
async def rerendered(talk: Talk) -> None:
    talk.lab.engine.trims = True
    await talk.work(2)
    talk.keep(await talk.ask(talk.look("Now the third part. ")))
    await talk.work(1)
    await talk.finish()


@event("the harness rewrites tool-call ids")
async def other_call_ids(talk: Talk) -> None:
    for turn in range(4):
        message = await talk.ask(talk.look())
        talk.keep(message, tool_calls=[call | {"id": f"mine-{turn}"} for call in message["tool_calls"]])
    await talk.finish()


@event("a call is made twice, the second reply kept")
async def made_twice(talk: Talk) -> None:
    await talk.work(2)
    await talk.ask(talk.look("I look around."))
    await talk.work(2)
    await talk.finish()


@event("a call is made twice: same text, other tokens")
async def same_text(talk: Talk) -> None:
    await talk.work(2)
    await talk.ask(Step(text="I look.", reasoning="First the small ones."))
    message = await talk.ask(Step(text="I look.", reasoning="Everything at once."))
    talk.keep(message, reasoning_content=None)
    talk.messages.append({"role": "user", "content": "Go on."})
    await talk.work(2)
    await talk.finish()


@event("the last call is made twice")
async def last_twice(talk: Talk) -> None:
    await talk.work(4)
    await talk.ask(Step(text="There are eleven."))
    await talk.finish()


@event("the verifier sees an edited text")
async def edited(talk: Talk) -> None:
    await clean(talk)
    talk.messages[-1]["content"] = "12"


@event("a call samples nothing")
async def samples_nothing(talk: Talk) -> None:
    await talk.work(2)
    assert not (await talk.ask(Step(finish_reason="length")))["content"]
    await talk.work(2)
    await talk.finish()


@event("a client leaves in mid-reply and asks again")
async def leaves_early(talk: Talk) -> None:
    await talk.work(2)
    await talk.listen(talk.look("A very long story. " * 20, delay=0.02), until_seen=b'"content":"A')
    await talk.work(2)
    await talk.finish()


@event("a client leaves after the terminal event")
async def leaves_late(talk: Talk) -> None:
    await talk.work(4)
    await talk.listen(Step(text="There are 12 files."), until_seen=b"[DONE]")
    talk.last_id = (await talk.lab.entries())[-1].response_id


def expected() -> dict[str, list[str]]:
    """The cells of the page's table, by event."""
    table = PAGE.read_text().partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [text.strip() for text in cells[1:]] for cells in rows[1:]}


async def built(talk: Talk, delivery: str, *, known: bool) -> Built:
    """The rollout finalized, with or without the result naming its last reply."""
    said = {"type": "message", "role": "assistant", "content": talk.messages[-1].get("content") or ""}
    result = {"_ng_rollout_id": "R1", "response": {"output": [said]}}
    result |= {"terminal_response_id": talk.last_id} if known else {}
    made = await finalize_rollout_token_capture(result, talk.lab.store, delivery=delivery)
    assert result.get("mask_sample", False) == made.mask_sample
    return made


def prove(made: Built, entries) -> None:
    """Every sampled token has one owner or one named reason; owners hold its own log-prob."""
    rows = {row.row_id: row for row in made.rebuilt.rows}
    owned = dict.fromkeys(rows, 0)
    for entry in entries:
        parts = [one for one in made.rebuilt.ledger if one.model_call_id == entry.model_call_id]
        covered = [at for one in parts for at in range(one.start, one.end)]
        assert sorted(covered) == list(range(len(entry.generation_token_ids)))
        for one in parts:
            assert bool(one.reason) == (one.row_id is None)
            if one.row_id is not None:
                owned[one.row_id] += one.end - one.start
    for row_id, row in rows.items():
        at = np.flatnonzero(row.loss_mask)
        assert len(at) == owned[row_id]
        assert row.log_probs[at].tolist() == [log_prob(int(row.token_ids[i]), int(i)) for i in at]


def cell(made: Built) -> str:
    return "masked" if made.mask_sample else f"{made.metrics['delivered_fraction']:.2f}"


@pytest.mark.parametrize("name", EVENTS)
async def test_what_is_trained_after(gateway, name):
    _, forest, chain, unknown = expected()[name]
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        await EVENTS[name](talk)
        entries = await talk.entries()
        assert name != "a client leaves after the terminal event" or entries[-1].delivery is not Delivery.UNDELIVERED
        assert len({entry.outcome for entry in entries} - {Outcome.COMPLETED}) == (name in ENDED_OTHERWISE)
        for known in (True, False):
            for delivery, share in (("forest", forest), ("chain", chain)):
                made = await built(talk, delivery, known=known)
                prove(made, entries)
                assert cell(made) == (share if known or unknown == "same" else unknown)
                if delivery == "forest" and not made.mask_sample:
                    assert made.metrics["delivered_trainable_fraction"] == 1.0


def test_the_page_has_a_row_for_each_event_and_one_that_masks():
    rows = expected()
    assert list(rows) == list(EVENTS)
    assert [name for name, cells in rows.items() if "masked" in cells[1:]] == ["the last call is made twice"]
