"""Rules for equal messages and other tokens: each with tokens that it fits, and with some close by that it must not."""

import msgspec
import pytest

from rolltape.chat import Message, ToolCall
from rolltape.rebuild.breaks import rendered
from rolltape.rebuild.breaks.hunk import Hunk
from rolltape.rebuild.breaks.place import Place
from rolltape.rebuild.breaks.talk import Turns

from ..calls import call

WORDS = ["<start>", "a", "b", "ab", " ", "  ", "<think>", "</think>", "hm", '{"x":', '{"x": ', "1}", "<pad>", "c", "d"]
ID = {word: index for index, word in enumerate(WORDS)}
PLAIN = Message("assistant", "abcd")
THINKS = Message("assistant", "abcd", reasoning="hm")
CALLS = Message("assistant", "", tool_calls=(ToolCall("t", "f", '{"x":1}'),))
SEES = Message("user", ({"type": "image_url", "image_url": {"url": "data:a"}},))
REST = ["c", "d", "c", "d", "d", "c", "c", "d"]


def fits(rule, was, now, message, *, texts=True, field=None):
    """What `rule` says of `message`, sampled as `was` and rendered as `now` behind one common token."""
    ours = call("a", [0], [ID[word] for word in was])
    theirs = call("b", [0, *(ID[word] for word in now)], [1])
    hunk = Hunk(ours, theirs, 1, (lambda token: WORDS[token].encode()) if texts else None)
    turns = Turns([msgspec.Raw(msgspec.json.encode(message))], None)
    return rule(hunk, Place(0, 0, 1, reply=True, exact=True, field=field), turns)


@pytest.mark.parametrize("message", [PLAIN, THINKS])
def test_a_boundary_is_the_same_text_in_other_tokens(message):
    assert fits(rendered.boundary, ["ab", *REST], ["a", "b", *REST], message)
    assert not fits(rendered.boundary, ["ab", *REST], ["a", "c", *REST], message)
    assert not fits(rendered.boundary, ["ab", *REST], ["a", "b", *REST], message, texts=False)


@pytest.mark.parametrize("texts", [True, False])
def test_reasoning_is_stripped_where_the_prompt_goes_on_behind_the_thinking(texts):
    thought = ["<think>", "hm", "hm", "hm", "</think>"]
    assert fits(rendered.reasoning, [*thought, *REST], REST, THINKS, texts=texts)
    assert not fits(
        rendered.reasoning, [*thought, *REST], [*thought[:1], "a", *thought[2:], *REST], THINKS, texts=texts
    )
    assert not fits(rendered.reasoning, ["a", "b", *REST], REST, PLAIN, texts=texts)


def test_an_empty_thinking_block_that_one_side_lacks_is_reasoning_too():
    assert fits(rendered.reasoning, ["<think>", "</think>", *REST], REST, PLAIN)
    assert not fits(rendered.reasoning, ["<think>", "</think>", "a"], ["<think>", "</think>", "b"], PLAIN)


def test_arguments_in_other_white_space_are_written_anew():
    was, now, field = ['{"x":', "1}", *REST], ['{"x": ', "1}", *REST], "tool_calls[0].arguments"
    assert fits(rendered.arguments, was, now, CALLS, field=field)
    assert not fits(rendered.arguments, was, now, CALLS, field="content")
    assert not fits(rendered.arguments, was, ["a", "1}", *REST], CALLS, field=field)


def test_white_space_alone_is_white_space():
    assert fits(rendered.whitespace, [" ", *REST], ["  ", *REST], PLAIN)
    assert not fits(rendered.whitespace, ["a", *REST], ["b", *REST], PLAIN)
    assert not fits(rendered.whitespace, [" ", *REST], ["  ", *REST], PLAIN, texts=False)


def test_an_image_shows_by_its_placeholders_in_a_message_that_has_one():
    was, now = ["c", "d"], ["<pad>"] * 9
    assert fits(rendered.image, was, now, SEES)
    assert not fits(rendered.image, was, now, PLAIN)
    assert not fits(rendered.image, was, REST, SEES)


def test_every_rule_is_one_of_those_above():
    assert {rule.__name__ for _, rule in rendered.RULES} == {
        "boundary",
        "reasoning",
        "arguments",
        "whitespace",
        "image",
    }
