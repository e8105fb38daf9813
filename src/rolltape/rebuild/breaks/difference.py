"""The two histories at a break, lined up: which message differs, in which field, and where both go on alike.

Everything here is about what the harness sent. What a template or tokenizer did shows as *no* difference.
"""

from dataclasses import dataclass

from rolltape.rebuild.breaks import arguments
from rolltape.rebuild.breaks.place import Place
from rolltape.rebuild.breaks.talk import HEAD, Turns


@dataclass(frozen=True, slots=True)
class Difference:
    """`at` is the index of the first message that differs, in both histories.

    `ours` is the history that was left, its reply last; `theirs` is the request that left it. `field` is the path of
    the text that differs, "role" where another kind of turn stands there, "" where one history ends. `was` and `now`
    are its two texts, "" where there is none. `gone` and `come` are how many messages were left out and put in
    before both go on alike; None where they never do.
    """

    ours: Turns
    theirs: Turns
    at: int
    field: str
    was: str
    now: str
    gone: int | None
    come: int | None

    @property
    def role(self) -> str:
        """Of the message that differs; the request's where the other history ends."""
        turns = self.ours if self.at < len(self.ours) else self.theirs
        return turns[self.at].role if self.at < len(turns) else ""

    @property
    def in_place(self) -> bool:
        """One message was rewritten: the same kind of turn, and nothing says that others came or went."""
        return self.field not in ("role", "") and (self.gone, self.come) in ((1, 1), (None, None))

    @property
    def sampled(self) -> bool:
        """Whether the message that differs is an assistant turn of the history that was left."""
        return self.at < len(self.ours) and self.ours[self.at].role == "assistant"

    @property
    def same_turn(self) -> bool:
        """Whether both messages are one turn, and one of them was rewritten: by the ids of its calls, or by its texts.

        The name of a tool is no sign; the same value in other JSON is one.
        """
        if self.at >= min(len(self.ours), len(self.theirs)) or self.field == "role":
            return False
        was, now = self.ours[self.at], self.theirs[self.at]
        if {call.id for call in was.tool_calls} & {call.id for call in now.tool_calls} - {""}:
            return True
        had, has = (
            {p: t for p, t in turns.fields(self.at) if not p.endswith(".name")} for turns in (self.ours, self.theirs)
        )
        return any(_alike(text, has.get(path, "")) for path, text in had.items()) or not (had and has)

    @property
    def in_head(self) -> bool:
        """Whether it is one of the system messages that either history begins with."""
        sides = [turns for turns in (self.ours, self.theirs) if self.at < len(turns)]
        before = all(sides[0][index].role in HEAD for index in range(self.at))
        return before and any(turns[self.at].role in HEAD for turns in sides)


def _alike(was: str, now: str) -> bool:
    a, b = "".join(was.split()), "".join(now.split())
    if a == b:
        return True
    before, after = arguments.parsed(was), arguments.parsed(now)
    if not before or not after:
        return False
    return arguments.holds(after, before) or arguments.holds(before, after)


def find(ours: Turns, theirs: Turns, place: Place) -> Difference | None:
    """The first difference among the messages of `place`; None where all of them are alike."""
    for at in range(place.first, place.last + 1):
        if at >= len(ours) or at >= len(theirs) or not ours.same(at, theirs, at):
            return _describe(ours, theirs, at, place.field if at == place.first else None)
    return None


def _describe(ours: Turns, theirs: Turns, at: int, field: str | None) -> Difference:
    gone, come = _resume(ours, theirs, at)
    if at >= len(ours) or at >= len(theirs):
        return Difference(ours, theirs, at, "", "", "", gone, come)
    if ours[at].role != theirs[at].role:
        return Difference(ours, theirs, at, "role", ours[at].role, theirs[at].role, gone, come)
    path, was, now = _field(ours, theirs, at, field)
    return Difference(ours, theirs, at, path, was, now, gone, come)


def _field(ours: Turns, theirs: Turns, at: int, known: str | None) -> tuple[str, str, str]:
    """The first text that differs, from the `known` one on; a text that both have is not the one."""
    had, has = dict(ours.fields(at)), dict(theirs.fields(at))
    differing = sorted((path for path in had | has if had.get(path) != has.get(path)), key=_shown_first)
    start = _shown_first(known) if known else (0, 0, False)
    path = next((path for path in differing if _shown_first(path) >= start), differing[0])
    return path, had.get(path, ""), has.get(path, "")


def _shown_first(path: str) -> tuple[int, int, bool]:
    kind = ("reasoning", "content", "tool_calls").index(path.split(".")[0].split("[")[0])
    number = int(path.split("[")[1].split("]")[0]) if "[" in path else 0
    return kind, number, path.endswith("arguments")


def _resume(ours: Turns, theirs: Turns, at: int) -> tuple[int | None, int | None]:
    """The fewest messages left out and put in after which both have the same one; (None, None) if they never do."""
    there: dict[int, int] = {}
    for index in range(len(theirs) - 1, at - 1, -1):
        there[theirs.key(index)] = index - at
    found = [
        (index - at, there[key])
        for index in range(at, len(ours))
        if ours.fields(index) and (key := ours.key(index)) in there
    ]
    return min(found, key=sum, default=(None, None))
