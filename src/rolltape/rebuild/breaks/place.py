"""From a token's position to the message that it lies in: by the calls before, and by texts where there are any.

The ids alone tell a good deal. Each call above the one that was left ends its prompt where its reply begins, so a
position lies either inside the reply of a known call, which is one message, or between two replies. With the texts of
tokens the messages between are walked one by one. A span is (first, last) index of the messages in question, both
counted; where a position lies in what a template writes between two messages, both are named.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rolltape.rebuild.breaks.hunk import Hunk
from rolltape.rebuild.breaks.talk import Turns
from rolltape.rebuild.tree import CallTree

_TELLING = 8  # characters; a shorter text may stand anywhere


@dataclass(frozen=True, slots=True)
class Place:
    """`first`..`last`: the messages that the position may lie in. `start`: where in tokens the first of them begins.

    `field` is the path within the message where the position is known to lie inside one text. `reply` says that the
    ids place it inside what a call sampled. `exact`: read from the text, or inside one reply.
    """

    first: int
    last: int
    start: int
    reply: bool = False
    exact: bool = False
    field: str | None = None


def by_calls(tree: CallTree, call: str, at: int, turns: Turns, sent: Callable[[str], int | None]) -> Place:
    """Where position `at` of the whole `call` lies, from where the calls above it begin and end.

    `turns` are the call's; `sent` gives how many messages a call's request has, None where nobody knows.
    """
    for found in tree.upwards(call):
        begin = len(tree.entries[found].prompt_token_ids)
        index = sent(found)
        if at >= begin:
            fits = index is not None and index < len(turns) and turns[index].role == "assistant"
            return Place(index, index, begin, True, True) if index is not None and fits else _anywhere(turns)
        parent = tree.parents[found]
        if parent is not None and at < tree.entries[parent].length:
            continue
        last = turns.size - 1 if index is None else min(index, turns.size - 1)
        before = sent(parent) if parent is not None else None
        if parent is None or before is None:
            return Place(0, last, 0)
        return Place(min(before + 1, last), last, tree.entries[parent].length)
    return _anywhere(turns)


def _anywhere(turns: Turns) -> Place:
    return Place(0, max(turns.size - 1, 0), 0)


def by_text(place: Place, hunk: Hunk, turns: Turns) -> Place:
    """`place` narrowed down by the text before the break. The same place without the texts of tokens."""
    if hunk.text is None:
        return place
    text = hunk.before(place.start)
    cursor, behind = 0, None
    for index in range(place.first, place.last + 1):
        for path, value in turns.fields(index):
            value = value.strip()
            if not _telling(path, value):
                continue
            found = text.find(value, cursor)
            if found >= 0:
                cursor, behind = found + len(value), index
            elif _ends_within(text[cursor:], value):
                return Place(index, index, place.start, place.reply, True, path)
    return _after(place, turns, behind, text[cursor:])


def _telling(path: str, value: str) -> bool:
    """Whether a text is one to find one's place by: the name of a tool stands in the list of tools too."""
    return len(value) >= _TELLING and not path.endswith(".name")


def _ends_within(text: str, value: str) -> bool:
    """Whether `text` breaks off inside `value`."""
    at = text.find(value[:_TELLING])
    while at >= 0 and not value.startswith(text[at:]):
        at = text.find(value[:_TELLING], at + 1)
    return at >= 0


def _after(place: Place, turns: Turns, behind: int | None, rest: str) -> Place:
    """Behind a message's last text that was found whole: in the next one's beginning, or what stands between."""
    first = place.first if behind is None else behind
    last = place.first if behind is None else min(behind + 1, place.last)
    if place.reply:
        return Place(place.first, place.last, place.start, True, True, _call_field(turns, place.first, rest))
    while last < place.last and not any(_telling(path, value.strip()) for path, value in turns.fields(last)):
        last += 1
    return Place(first, last, place.start, False, False)


def _call_field(turns: Turns, index: int, rest: str) -> str | None:
    """The arguments of the tool call whose name was the last one written."""
    named = [
        (rest.rfind(value), path) for path, value in turns.fields(index) if path.endswith(".name") and value in rest
    ]
    return max(named)[1].removesuffix("name") + "arguments" if named else None
