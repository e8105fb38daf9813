"""The tail that any chat template writes after a reply, and when it cannot be told."""

import numpy as np
import pytest

from rolltape.chat import ChatRequest, Message, ToolCall
from rolltape.render import CannotContinue, TemplateExtender, split
from rolltape.render.turns import Recorded
from rolltape.tokens import token_ids

STOP, OPEN = 1, 2


def ids(text: str) -> list[int]:
    return [{"<": OPEN, ">": STOP}.get(c, ord(c)) for c in text]


class Template:
    """ChatML with `<` and `>` for its tokens; `strips` reasoning from all but the last assistant turn."""

    def __init__(self, turn=None, tail="<assistant:"):
        self.turn = turn or (lambda number, message: f"<{message.role}:{body(message)}>\n")
        self.tail = tail
        self.rendered = 0

    async def __call__(self, request: ChatRequest):
        self.rendered += 1
        turns = [self.turn(number, message) for number, message in enumerate(request.messages)]
        return token_ids(ids("".join([*turns, self.tail])))


def body(message: Message) -> str:
    calls = "".join(f"[{call.name} {call.arguments}]" for call in message.tool_calls)
    return message.text() + calls


def conversation(reply: Message | None = None, *news: Message) -> ChatRequest:
    reply = reply or Message(role="assistant", content="fine")
    return ChatRequest(model="m", messages=(Message(role="user", content="hi"), reply, *(news or (MORE,))))


MORE = Message(role="user", content="and?")


def sampled(text: str) -> Recorded:
    return Recorded("one", b"", b"", token_ids(ids(text)), 5)


async def extended(template: Template, recorded: Recorded, request: ChatRequest) -> str:
    found = await TemplateExtender(template).extend(recorded, request, split(request))
    assert np.array_equal(found[: len(recorded.sequence)], recorded.sequence)
    return "".join({OPEN: "<", STOP: ">"}.get(i, chr(i)) for i in found[len(recorded.sequence) :])


async def test_the_tail_follows_the_stop_token_of_the_reply():
    said = sampled("<user:hi>\n<assistant:(thinking) fine>")
    assert await extended(Template(), said, conversation()) == "\n<user:and?>\n<assistant:"


async def test_a_prompt_that_extends_the_recorded_ids_by_itself_is_left_as_it_is():
    template = Template()
    assert await extended(template, sampled("<user:hi>\n<assistant:fine>"), conversation()) == (
        "\n<user:and?>\n<assistant:"
    )
    assert template.rendered == 1


async def test_several_results_are_all_written():
    reply = Message(role="assistant", tool_calls=(ToolCall("a", "ls", "{}"), ToolCall("b", "pwd", "{}")))
    news = (Message(role="tool", content="x", tool_call_id="a"), Message(role="tool", content="y", tool_call_id="b"))
    said = sampled("<user:hi>\n<assistant:hm [ls { }][pwd {}]>")
    assert await extended(Template(), said, conversation(reply, *news)) == "\n<tool:x>\n<tool:y>\n<assistant:"


async def test_an_empty_reply_has_an_end_too():
    said = sampled("<user:hi>\n<assistant:(only thoughts)>")
    assert await extended(Template(), said, conversation(Message(role="assistant", content=""))) == (
        "\n<user:and?>\n<assistant:"
    )


async def test_a_call_that_ended_in_another_token_is_not_gone_on_from():
    with pytest.raises(CannotContinue, match="0 tokens"):
        await extended(Template(), sampled("<user:hi>\n<assistant:fine!"), conversation())


async def test_a_turn_that_the_template_puts_in_between_is_not_lost():
    def turn(number, message):
        return f"<{message.role}:{body(message)}>\n" + ("<system:mind>\n" if message.role == "assistant" else "")

    with pytest.raises(CannotContinue, match="2 tokens"):
        await extended(Template(turn), sampled("<user:hi>\n<assistant:(x) fine>"), conversation())


async def test_what_the_template_leaves_out_is_left_out():
    def turn(number, message):
        return "" if message.content == "and?" else f"<{message.role}:{body(message)}>\n"

    said = sampled("<user:hi>\n<assistant:(x) fine>")
    assert await extended(Template(turn), said, conversation()) == "\n<assistant:"


async def test_news_that_are_written_by_what_was_reasoned_are_not_believed():
    def turn(number, message):
        return f"<{message.role}:{body(message)}>\n"

    class Peeking(Template):
        async def __call__(self, request):
            self.tail = "<assistant:" + ("think" if any(m.reasoning for m in request.messages) else "")
            return await super().__call__(request)

    reply = Message(role="assistant", content="fine", reasoning="hm")
    with pytest.raises(CannotContinue, match="after another history"):
        await extended(Peeking(turn), sampled("<user:hi>\n<assistant:(hm) fine>"), conversation(reply))


async def test_news_that_begin_like_the_mark_are_told_apart():
    news = Message(role="user", content="Q7")
    said = sampled("<user:hi>\n<assistant:(x) Q>")
    assert await extended(Template(), said, conversation(Message(role="assistant", content="Q"), news)) == (
        "\n<user:Q7>\n<assistant:"
    )
