"""What is said of a whole rollout: causes in the rebuild, tokens lost once, places, and texts that are missing."""

import random
import time

import msgspec
import pytest

from rolltape.chat import Message
from rolltape.rebuild import rebuild
from rolltape.rebuild.breaks import ADVICE, MEANING, Cause, explain
from rolltape.rebuild.policy import KindPolicy
from rolltape.rebuild.tree import grow

from ..calls import call, snapshot
from . import edits, kit


def case(cause, edit):
    return next(found for name, found in edits.cases(cause, count=30) if edit.__name__ in name)


def tree_of(found):
    return grow((*found.before, found.last), KindPolicy())


def test_rebuild_names_the_causes_that_its_entries_tell():
    found = case(Cause.DEFAULT_ADDED, edits.gains_default)
    built = rebuild(snapshot((*found.before, found.last)))

    assert [one.cause for one in built.prefix_breaks] == ["default_added"]
    assert built.metrics["prefix_breaks"] == {"default_added": 1}


def test_without_texts_the_causes_are_unknown_and_positions_are_there():
    found = case(Cause.DEFAULT_ADDED, edits.gains_default)
    bare = [entry.with_(request_text=None, output_items=()) for entry in (*found.before, found.last)]
    (told,) = explain(grow(bare, KindPolicy()))

    assert (told.cause, told.evidence) == (Cause.UNKNOWN, "no texts were kept of both calls")
    assert told.was is not None
    assert told.was.text is None


def test_kinds_alone_tell_a_sub_agent_and_a_compaction():
    main = call("c1", [1, 2, 3], [4])
    for kind, cause in (("subagent", "other_conversation"), ("compaction", "compaction"), ("agent", "unknown")):
        built = rebuild(snapshot(main, call("c2", [1, 9, 9, 9], [5], kind=kind)))
        assert [one.cause for one in built.prefix_breaks] == [cause]


def test_a_branch_in_unsampled_text_is_explained_and_is_no_break():
    request = kit.conversations("opencode")[0]
    at = kit.replies(request)[1]
    edited = edits.pads_result(random.Random(1), request, at)
    tree = grow((*kit.history(request, at), kit.entry("c999", edited, None)), KindPolicy())
    (told,) = explain(tree, kit.text())

    assert tree.breaks == ()
    assert (told.broken, told.cause, told.message) == (False, Cause.WHITESPACE, at - 1)
    assert told.tokens_lost == len(tree.entries[f"c{at}"].generation_token_ids)


def test_lost_tokens_are_counted_once_and_a_conversation_of_its_own_loses_none():
    a = call("a", [1, 2], [3, 4], step_index=0)
    b = call("b", [1, 2, 3, 4, 5], [6, 7], step_index=1)
    c = call("c", [1, 2, 3, 9, 9, 9], [8], step_index=2)
    d = call("d", [1, 2, 9, 9, 9, 9, 9], [8], step_index=3)
    e = call("e", [1, 7, 7], [8], step_index=4, kind="subagent")
    told = {one.call: one.tokens_lost for one in explain(grow((a, b, c, d, e), KindPolicy()))}

    assert told == {"c": 3, "d": 1, "e": 0}


def test_the_first_differing_token_decides_between_two_causes():
    """Thinking comes before arguments: both are gone from one turn, and the thinking is what differs first."""
    request = next(r for r in kit.conversations("qwen-code") if kit.replies(r)[:-1])
    at = next(at for at in kit.replies(request)[:-1] if edits.call_of(request, at))
    honest = edits.thinking(random.Random(1), request, at)
    both = edits.spaced(random.Random(1), edits.request_without_thinking(honest, at), at)
    told = kit.explained(kit.history(honest, at), kit.entry("c999", both, None))
    assert (told.cause, told.message, told.field) == (Cause.REASONING_STRIPPED, at, "reasoning")

    only = edits.spaced(random.Random(1), honest, at)
    told = kit.explained(kit.history(honest, at), kit.entry("c999", only, None))
    assert (told.cause, told.field) == (Cause.TOOL_ARGUMENTS_RESERIALISED, "tool_calls[0].arguments")


def test_a_change_behind_the_break_is_not_its_cause():
    """The template drops the thinking of an early turn; the harness changes a later one."""
    request = next(r for r in kit.conversations("qwen-code") if len(kit.replies(r)) > 3)
    first, later = kit.replies(request)[0], kit.replies(request)[2]
    honest = edits.thinking(random.Random(1), request, first)
    changed = edits.with_(honest, later, Message("assistant", "Something else."))
    asked = msgspec.structs.replace(changed, messages=(*changed.messages, Message("user", "And now?")))
    told = kit.explained(kit.history(honest, later), kit.entry("c999", asked, None))

    assert (told.cause, told.message) == (Cause.REASONING_STRIPPED, first)


@pytest.mark.parametrize("text", [b"{", b'{"messages": [7, {"role": 3}]}', b'{"messages": 1}', b"\xff", b""])
def test_texts_that_cannot_be_read_never_raise(text):
    items = ({"type": "reasoning", "summary": "?"}, {"type": "message", "content": [1]}, {"type": "function_call"})
    one = call("a", [1, 2], [3], request_text=text, output_items=items)
    two = call("b", [1, 5, 6], [3], request_text=text, output_items=items)

    assert [found.call for found in rebuild(snapshot(one, two)).prefix_breaks] == ["b"]


def test_every_cause_has_a_meaning_and_advice():
    assert set(MEANING) == set(ADVICE) == set(Cause)
    assert all(1 <= text.count(". ") + text.endswith(".") <= 2 for text in ADVICE.values())


def test_a_chain_that_breaks_at_every_turn_is_explained_in_a_time_that_grows_with_its_texts():
    def seconds(turns: int) -> float:
        messages, ids, entries = [Message("user", "Go on.")], [1, 2], []
        for turn in range(turns):
            reply = Message("assistant", f"turn {turn}")
            request = msgspec.json.encode({"model": "m", "messages": messages})
            items = tuple(kit.items(reply))
            entries.append(call(f"c{turn}", ids, [900, 901 + turn], request_text=request, output_items=items))
            messages = [*messages, Message("assistant", f"turn {turn} "), Message("user", "Go on.")]
            ids = [*ids, 3, 4]
        start = time.perf_counter()
        told = explain(grow(entries, KindPolicy()))
        assert {one.cause for one in told} <= {Cause.WHITESPACE}
        return time.perf_counter() - start

    assert seconds(300) < 1.5
