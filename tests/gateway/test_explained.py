"""What is said of ordinary events, over HTTP: each break and branch with its cause and the message it lies in."""

import pytest

from rolltape.cli import vocabulary
from rolltape.rebuild import KindPolicy, rebuild
from rolltape.rebuild.breaks import explain, tree_of

from .talk import Prompted, Talk
from .test_events import EVENTS

EXPLAINED = {
    "a title is made first": ("other_conversation", 0),
    "a sub-agent with three calls": ("other_conversation", 0),
    "compaction: the oldest turns are dropped": ("turn_dropped", 2),
    "microcompaction: one old tool result is cleared": ("compaction", 3),
    "compaction to a summary": ("compaction", 1),
    "a reminder that the next request no longer holds": ("reminder", 6),
    "the harness strips a turn's trailing space": ("whitespace", 6),
    "the template renders a turn in other tokens": ("whitespace", 6),
    "a call is made twice: same text, other tokens": ("reasoning_stripped", 6),
}


@pytest.mark.parametrize("name", EVENTS)
async def test_each_event_has_the_cause_that_it_is_or_no_break(gateway, name):
    async with gateway(engine=Prompted()) as lab:
        talk = Talk(lab)
        await EVENTS[name](talk)
        await talk.entries()
        recorded = await lab.store.read("R1", texts=True)

    kinds = {node.model_call_id: node.kind for node in rebuild(recorded).tree}
    told = explain(tree_of(recorded.entries, kinds, KindPolicy()), vocabulary.of_entries(recorded.entries))

    assert [(one.cause, one.message) for one in told] == ([EXPLAINED[name]] if name in EXPLAINED else [])
    for one in told:
        assert (one.tokens_lost > 0) == (one.cause != "other_conversation")
        assert None not in (one.was, one.now)
