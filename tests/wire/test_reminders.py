"""RT-17: reminders that Claude Code puts in the middle stay in their place, so that histories only ever grow."""

import msgspec

from rolltape.wire.anthropic_messages import AnthropicMessages

TURN_1 = [{"role": "user", "content": "u1"}]
TURN_2 = [
    *TURN_1,
    {"role": "assistant", "content": "a1"},
    {"role": "system", "content": "reminder 1"},
    {"role": "user", "content": "u2"},
]
TURN_3 = [
    *TURN_2,
    {"role": "assistant", "content": "a2"},
    {"role": "system", "content": "reminder 2"},
    {"role": "user", "content": "u3"},
]


def decoded(messages):
    body = {"model": "m", "max_tokens": 10, "system": "S", "messages": messages}
    return AnthropicMessages().decode("/v1/messages", msgspec.json.encode(body), {}).messages


def test_a_reminder_stays_where_it_was_said():
    assert [message.role for message in decoded(TURN_2)] == ["system", "user", "assistant", "system", "user"]


def test_the_head_is_the_same_on_every_turn():
    assert {decoded(turn)[0].text() for turn in (TURN_1, TURN_2, TURN_3)} == {"S"}


def test_a_longer_history_begins_with_the_shorter_one():
    assert decoded(TURN_3)[: len(decoded(TURN_2))] == decoded(TURN_2)
