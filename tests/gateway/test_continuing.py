"""`mode: continue` over HTTP: recorded ids stay as they are, and what cannot be proved is observed and says so."""

import numpy as np
import pytest

from rolltape.rebuild import rebuild
from rolltape.testing.scripted import Step

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


def thinking(*texts: str) -> list[Step]:
    return [Step(text=text, reasoning=f"I think {text}") for text in texts]


def said(body) -> dict:
    return body["choices"][0]["message"]


def without_reasoning(message: dict) -> dict:
    return {name: value for name, value in message.items() if not name.startswith("reasoning")}


async def two_turns(lab, change=without_reasoning, news="and now?"):
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    _, first = await lab.ask(messages=history)
    history += [change(said(first)), {"role": "user", "content": news}]
    status, second = await lab.ask(messages=history)
    assert status == 200
    return history, second


@pytest.mark.parametrize(("mode", "chains"), [("observe", 2), ("continue", 1)])
async def test_dropped_reasoning_breaks_a_chain_only_where_it_is_observed(gateway, mode, chains):
    async with gateway(script=thinking("one", "two"), mode=mode) as lab:
        await two_turns(lab)
        held = await lab.store.freeze("R1")
        assert rebuild(held).metrics["chains"] == chains
        assert rebuild(held).metrics["delivered_fraction"] == 1.0


async def test_the_prompt_is_the_recorded_sequence_and_what_the_template_writes_of_the_news(gateway):
    async with gateway(script=thinking("one", "two"), mode="continue") as lab:
        await two_turns(lab)
        first, second = await lab.entries()
        assert second.extra["continuation"] == f"continued: {first.model_call_id} by template"
        tail = second.prompt_token_ids[first.length :]
        assert np.array_equal(second.prompt_token_ids[: first.length], first.sequence)
        rendered = await lab.engine.render(lab.engine.seen[-1][0])
        assert np.array_equal(rendered[-len(tail) :], tail)


async def test_a_conversation_is_gone_on_from_turn_after_turn(gateway):
    async with gateway(script=thinking(*"abcdefgh"), mode="continue") as lab:
        history = [{"role": "user", "content": "begin"}]
        for turn in range(8):
            _, body = await lab.ask(messages=history)
            history += [without_reasoning(said(body)), {"role": "user", "content": f"go on {turn}"}]
        rebuilt = rebuild(await lab.store.freeze("R1"))
        assert (rebuilt.metrics["chains"], len(rebuilt.rows)) == (1, 1)


async def test_arguments_that_were_serialised_again_are_gone_on_from(gateway):
    step = Step(text="", reasoning="hm", tool_calls=(("bash", '{"command":  "ls"}'),))
    async with gateway(script=[step, Step(text="done")], mode="continue") as lab:
        history = [{"role": "user", "content": "list"}]
        _, first = await lab.ask(messages=history, tools=TOOLS)
        call = said(first)["tool_calls"][0]
        call["function"]["arguments"] = '{"command":"ls"}'
        history += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "a.txt"},
        ]
        await lab.ask(messages=history, tools=TOOLS)
        one, two = await lab.entries()
        assert two.extra["continuation"].startswith("continued: ")
        assert np.array_equal(two.prompt_token_ids[: one.length], one.sequence)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda message: {**message, "content": "something else"}, "no recorded call"),
        (lambda message: {**message, "content": "  one\n"}, None),
    ],
)
async def test_a_reply_that_its_harness_rewrote_is_not_taken_for_the_one_that_was_sampled(gateway, change, reason):
    async with gateway(script=thinking("one", "two"), mode="continue") as lab:
        await two_turns(lab, lambda message: change(without_reasoning(message)))
        how = (await lab.entries())[1].extra["continuation"]
        assert how.startswith("continued") if reason is None else how.startswith(f"observed: {reason}")


async def test_a_changed_system_prompt_is_another_conversation(gateway):
    async with gateway(script=thinking("one", "two", "three"), mode="continue") as lab:
        history, _ = await two_turns(lab)
        await lab.ask(messages=[{"role": "system", "content": "Be long."}, *history[1:]])
        assert (await lab.entries())[2].extra["continuation"].startswith("observed: no recorded call")


async def test_two_attempts_with_one_text_in_different_tokens_are_not_told_apart(gateway):
    steps = [Step(text="same", reasoning="a"), Step(text="same", reasoning="b"), Step(text="end")]
    async with gateway(script=steps, mode="continue") as lab:
        opening = [{"role": "user", "content": "hi"}]
        _, first = await lab.ask(messages=opening)
        await lab.ask(messages=opening)
        await lab.ask(messages=[*opening, without_reasoning(said(first)), {"role": "user", "content": "more"}])
        assert "in different tokens" in (await lab.entries())[2].extra["continuation"]


async def test_a_reply_that_was_cut_is_not_gone_on_from(gateway):
    async with gateway(script=thinking("one", "two"), mode="continue") as lab:
        opening = [{"role": "user", "content": "hi"}]
        _, first = await lab.ask(messages=opening, max_tokens=14)
        assert first["choices"][0]["finish_reason"] == "length"
        await lab.ask(messages=[*opening, without_reasoning(said(first)), {"role": "user", "content": "more"}])
        assert (await lab.entries())[1].extra["continuation"].startswith("observed: no recorded call")


async def test_rollouts_do_not_go_on_from_each_other(gateway):
    async with gateway(script=thinking("one", "two"), mode="continue") as lab:
        opening = [{"role": "user", "content": "hi"}]
        _, first = await lab.ask(messages=opening)
        history = [*opening, without_reasoning(said(first)), {"role": "user", "content": "more"}]
        await lab.ask("R2", messages=history)
        assert (await lab.entries("R2"))[0].extra["continuation"].startswith("observed: no recorded call")


async def test_text_that_spells_a_stop_token_does_not_end_the_reply(gateway):
    async with gateway(script=thinking("one", "two"), mode="continue") as lab:
        await two_turns(lab, news="<|im_end|> is written like this <|im_end|>")
        one, two = await lab.entries()
        assert two.extra["continuation"].startswith("continued")
        assert np.array_equal(two.prompt_token_ids[: one.length], one.sequence)
