"""Which recorded call a request goes on from."""

import numpy as np
import pytest

from rolltape.chat import ChatRequest, Message, ToolCall
from rolltape.record import Outcome, TokenEntry
from rolltape.render.turns import CannotContinue, Conversations, Recorded, recorded, split

USER = Message(role="user", content="list the folder")
CALL = Message(role="assistant", content="", reasoning="hm", tool_calls=(ToolCall("c1", "bash", '{"command": "ls"}'),))
RESULT = Message(role="tool", content="a.txt", tool_call_id="c1")


def request(*messages: Message, **fields) -> ChatRequest:
    return ChatRequest(model="m", messages=messages, **fields)


def entry(**fields) -> TokenEntry:
    given = {
        "rollout_id": "R",
        "model_call_id": "one",
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3, 9],
        "generation_log_probs": [-1.0, -1.0],
        "finish_reason": "tool_calls",
    }
    return TokenEntry(**(given | fields))


def remembered(reply: Message = CALL, **fields) -> Conversations:
    known = Conversations()
    known.add("R", recorded(request(USER), entry(**fields), reply, None))
    return known


def test_the_call_is_found_by_its_opening_and_its_reply():
    found = remembered().find("R", split(request(USER, CALL, RESULT)))
    assert found.model_call_id == "one"
    assert (found.sequence.tolist(), found.stop, found.prompt_tokens) == ([1, 2, 3, 9], 9, 2)


@pytest.mark.parametrize(
    "echo",
    [
        Message(role="assistant", tool_calls=CALL.tool_calls),
        Message(role="assistant", content=None, tool_calls=(ToolCall("c1", "bash", '{"command":"ls"}'),)),
        Message(role="assistant", content=({"type": "text", "text": "\n"},), tool_calls=CALL.tool_calls),
    ],
)
def test_a_harness_may_serialise_the_reply_in_its_own_way(echo):
    assert remembered().find("R", split(request(USER, echo, RESULT)))


@pytest.mark.parametrize(
    "echo",
    [
        Message(role="assistant", content="Sure.", tool_calls=CALL.tool_calls),
        Message(role="assistant", tool_calls=(ToolCall("c2", "bash", '{"command": "ls"}'),)),
        Message(role="assistant", tool_calls=(ToolCall("c1", "bash", '{"command": "ls -l"}'),)),
        Message(role="assistant", tool_calls=(ToolCall("c1", "sh", '{"command": "ls"}'),)),
        Message(role="assistant"),
    ],
)
def test_another_reply_is_another_reply(echo):
    with pytest.raises(CannotContinue, match="no recorded call"):
        remembered().find("R", split(request(USER, echo, RESULT)))


@pytest.mark.parametrize(
    "other",
    [
        request(Message(role="user", content="list the folder!"), CALL, RESULT),
        request(Message(role="system", content="x"), USER, CALL, RESULT),
        request(USER, CALL, RESULT, tools=({"type": "function"},)),
        request(USER, CALL, RESULT, extra={"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_another_opening_is_another_conversation(other):
    with pytest.raises(CannotContinue, match="no recorded call"):
        remembered().find("R", split(other))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(USER), "begins here"),
        (request(USER, CALL), "ends in an assistant turn"),
        (ChatRequest(model="m", prompt="raw"), "raw prompt"),
        (
            request(USER, CALL, Message(role="user", content=({"type": "image_url", "image_url": {"url": "x"}},))),
            "images",
        ),
    ],
)
def test_some_requests_go_on_from_nothing(asked, reason):
    with pytest.raises(CannotContinue, match=reason):
        split(asked)


@pytest.mark.parametrize(
    ("changes", "stop_sequence"),
    [
        ({"finish_reason": "length"}, None),
        ({"finish_reason": "stop"}, "###"),
        ({"outcome": Outcome.CANCELLED}, None),
        ({"generation_token_ids": [], "generation_log_probs": []}, None),
        ({"faults": ("token_count_mismatch",)}, None),
    ],
)
def test_what_does_not_end_in_a_stop_token_is_not_gone_on_from(changes, stop_sequence):
    assert recorded(request(USER), entry(**changes), CALL, stop_sequence) is None


def call(name: str, size: int, reply: bytes = b"r") -> Recorded:
    return Recorded(name, b"o", reply, np.arange(size, dtype=np.int32), 1)


def test_the_oldest_rollout_is_forgotten_first():
    known = Conversations(most=25)
    for rollout in ("A", "B", "C"):
        known.add(rollout, call(rollout, 10))
    turn = split(request(USER, CALL, RESULT))
    turn = type(turn)(turn.at, b"o", b"r", turn.news)
    assert known.find("C", turn)
    with pytest.raises(CannotContinue):
        known.find("A", turn)


def test_a_rollout_keeps_its_newest_calls():
    known = Conversations(each=2)
    for number in range(4):
        known.add("A", call(str(number), 10, bytes([number])))
    turn = split(request(USER, CALL, RESULT))
    assert known.find("A", type(turn)(turn.at, b"o", bytes([3]), turn.news)).model_call_id == "3"
    with pytest.raises(CannotContinue):
        known.find("A", type(turn)(turn.at, b"o", bytes([1]), turn.news))
