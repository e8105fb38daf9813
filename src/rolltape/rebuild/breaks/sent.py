"""Rules for what the harness changed: from the first message that differs to a cause. The first that fits decides.

Each rule looks at one `Difference` and says whether it explains it, in a sentence of evidence; None where it does not.
They go from the narrow to the broad: a rule may rely on those before it not having fitted.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rolltape.rebuild.breaks import arguments, wording
from rolltape.rebuild.breaks.cause import Cause
from rolltape.rebuild.breaks.difference import Difference
from rolltape.rebuild.breaks.talk import HEAD, Turns, is_media

Rule: TypeAlias = Callable[[Difference], str | None]


def image(difference: Difference) -> str | None:
    """The part that differs is no text: a placeholder for an image stands for other pixels, or for none."""
    paths = [path for turns in _both(difference) for path, _ in turns]
    media = is_media(difference.field) or (difference.field.startswith("content") and any(map(is_media, paths)))
    if not media or _texts_alone_differ(difference):
        return None
    return f"{difference.field} is no longer the same part"


def whitespace(difference: Difference) -> str | None:
    """Both texts are the same letters. Arguments that are JSON are left to the rules for them."""
    if not difference.was or difference.was == difference.now or difference.field.endswith(".name"):
        return None
    if difference.field.endswith(".arguments") and arguments.parsed(difference.was) is not None:
        return None
    if "".join(difference.was.split()) != "".join(difference.now.split()):
        return None
    return f"{difference.field} differs in white space alone"


def reasoning(difference: Difference) -> str | None:
    """The turn came back without its thinking, or with a part or a summary of it."""
    if difference.field != "reasoning" or not difference.was or not difference.sampled or not difference.same_turn:
        return None
    left = "without its thinking" if not difference.now else "with other thinking"
    return f"the harness sent the turn back {left}"


def default_added(difference: Difference) -> str | None:
    """All that was sampled is there, and where the spellings part stands a member that was not."""
    if not difference.field.endswith(".arguments") or not difference.sampled or not difference.same_turn:
        return None
    was, now = arguments.parsed(difference.was), arguments.parsed(difference.now)
    if was is None or now is None or not arguments.holds(now, was):
        return None
    member = arguments.added_at(difference.was, difference.now)
    return None if member is None else f"{difference.field} gained {member!r}"


def reserialised(difference: Difference) -> str | None:
    """The same call in another spelling; or, where what was sampled is no JSON, what the harness made of it."""
    if not difference.sampled or not difference.now or not difference.same_turn or not _same_calls(difference):
        return None
    was, now = arguments.parsed(difference.was), arguments.parsed(difference.now)
    if difference.field.endswith(".name"):
        return f"the call came back under the name {difference.now!r}" if difference.was else None
    if not difference.field.endswith(".arguments") or now is None:
        return None
    if was is None:
        return f"{difference.field} was no JSON object and came back as one"
    alike = "the same value" if arguments.same_value(was, now) else "other values"
    return f"{difference.field} came back with {alike} in another spelling"


def merged(difference: Difference) -> str | None:
    """One turn now begins with all of another and goes on with more, or the other way round, or two changed places."""
    ours, theirs, at = difference.ours, difference.theirs, difference.at
    if difference.field in ("role", "") or at >= len(theirs):
        return _put_between(difference)
    if difference.role in HEAD or wording.only_reminders(_rest(difference.now, difference.was)):
        return None
    for turns, other, words in ((ours, theirs, "went on in the turn after it"), (theirs, ours, "was split")):
        if _begins(turns, other, at) and _takes_up(turns, other, at, difference):
            return f"the {difference.role} turn {words}"
    return _put_between(difference)


def compaction(difference: Difference) -> str | None:
    """Turns were cut, and words or a shorter text stand in their place."""
    theirs, at = difference.theirs, difference.at
    if difference.role == "tool" and difference.in_place:
        cleared = wording.CLEARED.search(difference.now) and not wording.CLEARED.search(difference.was)
        return "the result of a tool was cleared" if cleared else None
    fresh = theirs[at] if at < len(theirs) else None
    if fresh is None or fresh.role == "tool" or difference.in_head:
        return None
    stop = len(theirs) if difference.come is None else at + difference.come
    said = [theirs[index].text() for index in range(at, stop)]
    shorter = difference.gone is None or difference.gone > (difference.come or 0)
    if shorter and any(wording.SUMMARY.search(text) for text in said):
        return "a summary stands in the place of earlier turns"
    if (difference.gone or 0) - (difference.come or 0) >= 2 and (difference.come or 0) >= 1:
        return f"{difference.gone} turns gave way to {difference.come}"
    return None


def system(difference: Difference) -> str | None:
    """A system message at the head of the history changed, came or went, and the conversation goes on."""
    if not difference.in_head or not _goes_on(difference):
        return None
    return f"system message {difference.at} is not what it was"


def reminder(difference: Difference) -> str | None:
    """What differs was never sampled: the harness wrote it, and wrote it otherwise this time."""
    ours, theirs, at = difference.ours, difference.theirs, difference.at
    if difference.gone == 0 and difference.come:
        fresh = [theirs[index] for index in range(at, at + difference.come)]
        own = all(turn.role in HEAD or wording.only_reminders(turn.text()) for turn in fresh)
        return f"{len(fresh)} messages of the harness's own were put in" if own else None
    if difference.come == 0 and difference.gone:
        left = [ours[index] for index in range(at, at + difference.gone)]
        own = all(turn.role in HEAD or wording.only_reminders(turn.text()) for turn in left)
        return f"{len(left)} messages of the harness's own are gone" if own else None
    if not difference.in_place or difference.sampled:
        return None
    if wording.without_reminders(difference.was) == wording.without_reminders(difference.now):
        return f"a marked reminder in {difference.field} of a {difference.role} message changed"
    if difference.gone == 1:
        return f"the harness wrote {difference.field} of a {difference.role} message anew"
    return None


def dropped(difference: Difference) -> str | None:
    """Turns are missing: what follows them came up, or the reply was never taken in."""
    if difference.at >= len(difference.theirs):
        return "the history ends before this turn"
    if difference.come == 0 and difference.gone:
        return f"{difference.gone} turns are gone"
    if difference.sampled and difference.field == "role":
        return "the reply was not taken into the history"
    if difference.sampled and not difference.same_turn:
        return "another turn stands in its place"
    return None


RULES: Sequence[tuple[Cause, Rule]] = (
    (Cause.IMAGE, image),
    (Cause.WHITESPACE, whitespace),
    (Cause.REASONING_STRIPPED, reasoning),
    (Cause.DEFAULT_ADDED, default_added),
    (Cause.TOOL_ARGUMENTS_RESERIALISED, reserialised),
    (Cause.COMPACTION, compaction),
    (Cause.SYSTEM_PROMPT_VOLATILE, system),
    (Cause.TURN_MERGED, merged),
    (Cause.REMINDER, reminder),
    (Cause.TURN_DROPPED, dropped),
)


def _both(difference: Difference) -> list[tuple[tuple[str, str], ...]]:
    sides = (difference.ours, difference.theirs)
    return [turns.fields(difference.at) for turns in sides if difference.at < len(turns)]


def _texts_alone_differ(difference: Difference) -> bool:
    ours, theirs = (dict(fields) for fields in _both(difference))
    return {p: t for p, t in ours.items() if is_media(p)} == {p: t for p, t in theirs.items() if is_media(p)}


def _same_calls(difference: Difference) -> bool:
    """As many calls on both sides: a call more or less is a matter of turns."""
    ours, theirs = difference.ours[difference.at], difference.theirs[difference.at]
    return len(ours.tool_calls) == len(theirs.tool_calls)


def _goes_on(difference: Difference) -> bool:
    """Whether the history behind the difference is the same one: the next turn that is no system message is alike."""
    if difference.gone is None or difference.come is None:
        return False
    ours, theirs = difference.ours, difference.theirs
    here, there = difference.at + difference.gone, difference.at + difference.come
    while here < len(ours) and there < len(theirs) and ours.same(here, theirs, there):
        if ours[here].role not in HEAD:
            return True
        here, there = here + 1, there + 1
    return False


def _rest(text: str, start: str) -> str:
    return text.removeprefix(start) if start else ""


def _begins(turns: Turns, other: Turns, at: int) -> bool:
    """Whether `other` at `at` is all of `turns` there, and more. An empty turn begins nothing."""
    short, long = turns[at], other[at]
    if (short.reasoning or "") != (long.reasoning or "") or not (short.text().strip() or short.tool_calls):
        return False
    calls = [(call.name, call.arguments) for call in short.tool_calls]
    more = [(call.name, call.arguments) for call in long.tool_calls]
    if not long.text().startswith(short.text().strip()) or more[: len(calls)] != calls:
        return False
    return len(long.text().strip()) > len(short.text().strip()) or len(more) > len(calls)


def _takes_up(turns: Turns, other: Turns, at: int, difference: Difference) -> bool:
    """Whether what `other` has more is a later turn of `turns`, or stands where nothing later could be: at the end."""
    more = other[at].text().strip().removeprefix(turns[at].text().strip()).strip()
    calls = {(call.name, call.arguments) for call in other[at].tool_calls[len(turns[at].tool_calls) :]}
    for index in range(at + 1, len(turns)):
        later = turns[index]
        told = later.text().strip()
        if (more and told and more.startswith(told)) or calls & {(c.name, c.arguments) for c in later.tool_calls}:
            return True
    return difference.ours is turns and (difference.sampled or difference.gone != 1)


def _put_between(difference: Difference) -> str | None:
    """A turn that is no reminder was put in before one that is still there: an attempt that had been given up."""
    if difference.gone != 0 or not difference.come:
        return None
    fresh = [difference.theirs[index] for index in range(difference.at, difference.at + difference.come)]
    if all(turn.role in HEAD or wording.only_reminders(turn.text()) for turn in fresh):
        return None
    return f"{len(fresh)} turns were put in between"
