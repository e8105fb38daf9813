"""Each rule with the smallest history that it fits, and one close by that it must leave alone."""

import msgspec
import pytest

from rolltape.chat import Message, ToolCall
from rolltape.rebuild.breaks import sent, wording
from rolltape.rebuild.breaks.cause import Cause
from rolltape.rebuild.breaks.difference import Difference, find
from rolltape.rebuild.breaks.place import Place
from rolltape.rebuild.breaks.talk import Turns

SYSTEM, ASK = Message("system", "You write code."), Message("user", "Fix the test.")
LOOK = Message("assistant", "I look first.", tool_calls=(ToolCall("t1", "bash", '{"command": "ls -l"}'),))
SEEN = Message("tool", "a.py and b.py are here", tool_call_id="t1")
DONE = Message("assistant", "It is fixed now.")
MORE = Message("user", "Thank you. And now the other.")
REMINDER = "<system-reminder>Be brief.</system-reminder>"
SUMMARY = Message("user", "This session is continued from a previous conversation.")
STORY = (SYSTEM, ASK, LOOK, SEEN, DONE)


def turns(messages):
    return Turns([msgspec.Raw(msgspec.json.encode(message)) for message in messages], None)


def difference(ours, theirs) -> Difference:
    found = find(turns(ours), turns(theirs), Place(0, len(ours) - 1, 0))
    assert found is not None
    return found


def put(index, *messages, drop=1):
    return (*STORY[:index], *messages, *STORY[index + drop :], MORE)


def but(message, **changes):
    return msgspec.structs.replace(message, **changes)


def arguments(text):
    return but(LOOK, tool_calls=(ToolCall("t1", "bash", text),))


def picture(data):
    part = {"type": "image_url", "image_url": {"url": data}}
    return but(ASK, content=({"type": "text", "text": "Fix the test."}, part))


FITS = {
    sent.image: [put(1, picture("data:a"))],
    sent.whitespace: [put(1, but(ASK, content="Fix the  test.\n")), put(2, but(LOOK, content="I look first. "))],
    sent.default_added: [put(2, arguments('{"command": "ls -l", "background": false}'))],
    sent.reserialised: [
        put(2, arguments('{"command":"ls -l"}')),
        put(2, arguments('{"command": "ls"}')),
        put(2, but(LOOK, tool_calls=(ToolCall("t1", "invalid", '{"tool": "bash"}'),))),
    ],
    sent.compaction: [
        (SYSTEM, SUMMARY, MORE),
        put(1, Message("user", "What came before is gone."), drop=3),
        put(3, but(SEEN, content="[cleared]")),
    ],
    sent.system: [
        put(0, but(SYSTEM, content="You write code. It is Monday.")),
        put(0),
        put(0, SYSTEM, Message("system", "New.")),
    ],
    sent.merged: [
        put(1, but(ASK, content="Fix the test.\n\nPlease be quick."), drop=2),
        (*STORY[:4], but(DONE, content="It is fixed now. And tested.")),
        put(2, Message("assistant", "I look"), Message("user", "aborted"), LOOK),
    ],
    sent.reminder: [
        put(1, but(ASK, content=f"Fix the test.\n{REMINDER}")),
        put(3, Message("user", REMINDER), SEEN),
        put(3, Message("system", "The file changed."), SEEN),
        put(1, but(ASK, content="It is Monday. Fix the test.")),
    ],
    sent.dropped: [put(2, drop=2), (SYSTEM, ASK), (*STORY[:4], MORE), (*STORY[:4], Message("assistant", "No idea."))],
}

LEFT_ALONE = {
    sent.image: [put(1, but(ASK, content="Fix the other test."))],
    sent.whitespace: [put(1, but(ASK, content="Fix the tests.")), put(2, arguments('{"command":"ls -l"}'))],
    sent.reasoning: [put(2, but(LOOK, content="I look."))],
    sent.default_added: [
        put(2, arguments('{"command": "ls", "background": false}')),
        put(2, arguments('{"command":"ls -l","background":false}')),
    ],
    sent.reserialised: [put(2, but(LOOK, tool_calls=())), put(2, but(LOOK, content="I look."))],
    sent.compaction: [put(1, but(ASK, content="Fix it.")), put(3, but(SEEN, content="a.py")), put(2, drop=2)],
    sent.system: [put(3, Message("system", "New."), SEEN), (but(SYSTEM, content="You search."), MORE)],
    sent.merged: [
        put(1, but(ASK, content=f"Fix the test.\n{REMINDER}")),
        put(3, Message("user", REMINDER), SEEN),
        put(2, drop=2),
    ],
    sent.reminder: [put(2, drop=2), put(2, arguments('{"command":"ls -l"}')), (SYSTEM, MORE)],
    sent.dropped: [put(1, but(ASK, content="Fix it.")), put(3, Message("user", REMINDER), SEEN)],
}


def pairs(table):
    return [
        pytest.param(rule, theirs, id=f"{rule.__name__}-{number}")
        for rule, many in table.items()
        for number, theirs in enumerate(many)
    ]


@pytest.mark.parametrize(("rule", "theirs"), pairs(FITS))
def test_a_rule_fits_its_own_kind_of_change(rule, theirs):
    assert rule(difference(STORY, theirs))


@pytest.mark.parametrize(("rule", "theirs"), pairs(LEFT_ALONE))
def test_a_rule_leaves_alone_what_is_close_by(rule, theirs):
    assert rule(difference(STORY, theirs)) is None


def test_thinking_that_is_gone_is_stripped_reasoning():
    thinks = but(LOOK, reasoning="There must be a file.")
    assert sent.reasoning(difference((SYSTEM, ASK, thinks, SEEN), (SYSTEM, ASK, LOOK, SEEN, MORE)))
    another = Message("assistant", "Never mind.", reasoning="Something else.")
    assert sent.reasoning(difference((SYSTEM, ASK, thinks), (SYSTEM, ASK, another, MORE))) is None


def test_every_rule_has_both_kinds_of_test():
    rules = {rule for _, rule in sent.RULES}
    assert rules == set(FITS) | {sent.reasoning} == set(LEFT_ALONE)


def test_every_cause_but_those_of_tokens_and_tools_has_a_rule():
    elsewhere = {Cause.TOOLS_CHANGED, Cause.TOKENIZER_BOUNDARY, Cause.OTHER_CONVERSATION, Cause.UNKNOWN}
    assert {cause for cause, _ in sent.RULES} == set(Cause) - elsewhere


def test_a_summary_is_quoted_whole_or_by_the_part_that_it_marks():
    told = "Three files were written and all of the tests pass by now."
    reply = f"<analysis>hm</analysis><summary>{told}</summary>"
    assert wording.quotable(reply) == (reply, told)
    assert wording.quotable("ok") == ()
