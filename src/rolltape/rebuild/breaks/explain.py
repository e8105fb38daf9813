"""Each departure of a call tree -> its position, both tokens, its place and its cause. Pure.

```
ids        where the two sides part, exactly
calls      inside whose reply, or between which                   (place)
messages   the first one that differs there                       (difference) -> what the harness changed  (sent)
tokens     none does: what else the two sides say                 (hunk)       -> what rendering changed    (rendered)
```

Only the two calls of a departure are read, and each is read once. What the first differing token does not decide is
`unknown`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from rolltape.rebuild.breaks import rendered, sent, wording
from rolltape.rebuild.breaks.cause import ADVICE, Cause
from rolltape.rebuild.breaks.difference import Difference, find
from rolltape.rebuild.breaks.hunk import Hunk, Token, TokenText
from rolltape.rebuild.breaks.place import Place, by_calls, by_text
from rolltape.rebuild.breaks.talk import HEAD, Talk, Turns, replied, talk
from rolltape.rebuild.policy import KindPolicy, kind_of
from rolltape.rebuild.tree import CallTree, PrefixBreak, grow
from rolltape.record import TokenEntry

Summary: TypeAlias = tuple[tuple[str, ...], bool]
"""What of a reply may be quoted, and whether it is marked as a compaction's."""

_OF_THEIR_OWN = ("subagent", "title", "probe", "judge")
_THINKING_BEGINS = 4  # tokens of a reply within which a missing thought shows
_FAR = 64  # bytes that are alike behind another cut of the same text, where the texts differ later


@dataclass(frozen=True, slots=True)
class Explanation:
    """One departure. `broken`: a prefix break; False where the call still extends another whole call.

    `was` and `now` are the tokens at `first_divergence`, None where a side ends. `message` is the index in the call's
    request, `field` a path in it; None where nobody can tell. `evidence` is one sentence. `tokens_lost` were sampled in
    the history that was left, before this call and from the break on; each is counted for the first break only.

    The tree names the longer of two prompts; here `call` is the later of the two, where their order is known.
    """

    call: str
    nearest: str | None
    first_divergence: int
    broken: bool
    cause: Cause
    evidence: str
    was: Token | None = None
    now: Token | None = None
    message: int | None = None
    role: str | None = None
    field: str | None = None
    tokens_lost: int = 0

    @property
    def advice(self) -> str:
        return ADVICE[self.cause]

    def to_json(self) -> dict[str, object]:
        body: dict[str, object] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tokens = {name: token and token.to_json() for name, token in (("was", self.was), ("now", self.now))}
        return body | tokens | {"advice": self.advice}


def explain(tree: CallTree, text: TokenText | None = None) -> tuple[Explanation, ...]:
    """Every break and branch of `tree`, in the order of the calls. `text` gives the texts of tokens, where known."""
    departures = [(found, True) for found in tree.breaks] + [(found, False) for found in tree.branches]
    departures.sort(key=lambda one: _order(tree.entries[one[0].call]))
    reader = _Reader(tree, text)
    counted: dict[str, int] = {}
    return tuple(_counted(tree, reader.explain(found, broken), counted) for found, broken in departures)


def named(tree: CallTree) -> CallTree:
    """`tree` with the cause of each break that its entries can tell: without texts, that is seldom."""
    if not tree.breaks:
        return tree
    reader = _Reader(tree, None)
    return replace(tree, breaks=tuple(replace(one, cause=reader.explain(one, True).cause) for one in tree.breaks))


def tree_of(entries: Iterable[TokenEntry], kinds: Mapping[str, str], policy: KindPolicy) -> CallTree:
    """The tree of `entries` with the kinds that a rebuild told of its calls, by structure too."""
    told = (
        entry.with_(kind=kinds[entry.model_call_id])
        if kinds.get(entry.model_call_id, kind_of(entry)) != kind_of(entry)
        else entry
        for entry in entries
    )
    return grow(told, policy)


def _order(entry: TokenEntry) -> tuple[float, float, str]:
    step = float("inf") if entry.step_index is None else entry.step_index
    return step, entry.started_at or entry.created_at, entry.model_call_id


def _later_first(found: PrefixBreak, calls: Mapping[str, TokenEntry]) -> tuple[str, str | None]:
    """The call that left and the one it left: the later one leaves, unless the break lies in what it sampled."""
    if found.nearest is None:
        return found.call, None
    call, nearest = calls[found.call], calls[found.nearest]
    if found.first_divergence < len(nearest.prompt_token_ids) and _before(call, nearest):
        return found.nearest, found.call
    return found.call, found.nearest


def _before(one: TokenEntry, other: TokenEntry) -> bool:
    """Whether `one` is known to have come first."""
    if one.step_index is not None and other.step_index is not None:
        return one.step_index < other.step_index
    return 0 < one.created_at < (other.started_at or other.created_at)


class _Reader:
    """Reads the texts of a tree's calls, each at most once."""

    def __init__(self, tree: CallTree, text: TokenText | None) -> None:
        self._tree = tree
        self._text = text
        self._talks: dict[str, Talk | None] = {}
        self._said: list[tuple[TokenEntry, tuple[str, ...], bool]] | None = None

    def explain(self, found: PrefixBreak, broken: bool) -> Explanation:
        at, calls = found.first_divergence, self._tree.entries
        call, nearest = _later_first(found, calls)
        told = Explanation(call, nearest, at, broken, Cause.UNKNOWN, "")
        if nearest is None:
            now = Hunk(calls[call], calls[call], at, self._text).now()
            return replace(told, now=now, evidence="no call before it begins with the same token")
        hunk = Hunk(calls[nearest], calls[call], at, self._text)
        told = replace(told, was=hunk.was(), now=hunk.now())
        ours, theirs = self._talk(nearest), self._talk(call)
        if ours is None or theirs is None:
            cause = _by_kind(hunk)
            evidence = "the kinds of the two calls" if cause else "no texts were kept of both calls"
            return replace(told, cause=cause or Cause.UNKNOWN, evidence=evidence)
        return _judge(told, hunk, ours, theirs, self._place(nearest, hunk, ours.turns), self._summaries(call))

    def _place(self, nearest: str, hunk: Hunk, turns: Turns) -> Place:
        place = by_calls(self._tree, nearest, hunk.at, turns, self._sent)
        if hunk.text is None and place.reply and hunk.at - place.start > _THINKING_BEGINS:
            return replace(place, field="content")
        return by_text(place, hunk, turns)

    def _talk(self, call: str) -> Talk | None:
        if call not in self._talks:
            self._talks[call] = talk(self._tree.entries[call], reply=True)
        return self._talks[call]

    def _sent(self, call: str) -> int | None:
        found = self._talk(call)
        return None if found is None else found.turns.sent

    def _summaries(self, leaver: str) -> Iterator[Summary]:
        """What was said before `leaver` and may stand for a history: by a compaction, or in words nobody answered."""
        if self._said is None:
            self._said = [*self._sayings()]
        at = self._tree.entries[leaver]
        for entry, quotable, marked in self._said:
            if marked or _before(entry, at):
                yield quotable, marked

    def _sayings(self) -> Iterator[tuple[TokenEntry, tuple[str, ...], bool]]:
        for call, entry in self._tree.entries.items():
            marked = kind_of(entry) == "compaction"
            reply = replied(entry.output_items) if marked or not self._tree.children.get(call) else None
            if reply is not None and not reply.tool_calls and (quotable := wording.quotable(reply.text())):
                yield entry, quotable, marked


def _judge(
    told: Explanation, hunk: Hunk, ours: Talk, theirs: Talk, place: Place, summaries: Iterable[Summary]
) -> Explanation:
    request = theirs.turns.request()
    difference = find(ours.turns, request, place)
    if hunk.text is not None and rendered.goes_on_alike(hunk, _FAR if difference else 0):
        return _at_place(
            replace(told, cause=Cause.TOKENIZER_BOUNDARY, evidence="both sides say the same"), place, request
        )
    cause = _by_kind(hunk) if difference or ours.tools != theirs.tools else None
    if cause is not None and place.first == 0:
        return _at_place(replace(told, cause=cause, evidence="the kinds of the two calls"), place, request)
    if ours.tools != theirs.tools and place.first == 0 and (clear := _tools(hunk, difference, place)) is not None:
        return replace(
            told, cause=clear, evidence=_TOOLS[clear], field="tools" if clear is Cause.TOOLS_CHANGED else None
        )
    if difference is None:
        found = _rendered(told, hunk, place, ours.turns)
        if found.cause is not Cause.UNKNOWN or ours.tools == theirs.tools or place.reply:
            return found
        return replace(told, cause=Cause.TOOLS_CHANGED, evidence=_TOOLS[Cause.TOOLS_CHANGED], field="tools")
    return _sent(told, hunk, difference, summaries)


def _by_kind(hunk: Hunk) -> Cause | None:
    """A compaction, or a conversation of its own, where the kinds of both calls say so."""
    ours, theirs = kind_of(hunk.ours), kind_of(hunk.theirs)
    if ours == theirs:
        return None
    if "compaction" in (ours, theirs):
        return Cause.COMPACTION
    return Cause.OTHER_CONVERSATION if ours in _OF_THEIR_OWN or theirs in _OF_THEIR_OWN else None


_TOOLS = {
    Cause.TOOLS_CHANGED: "the lists of tools differ",
    Cause.UNKNOWN: "system prompt and tools differ, and only the texts of tokens would tell which is first",
}


def _tools(hunk: Hunk, difference: Difference | None, place: Place) -> Cause | None:
    """Templates show the tools before or after the system prompt, and before all else. None: it is not the tools."""
    if hunk.text is not None:
        inside = place.exact or place.first != 0 or place.last > 1
        return None if inside else Cause.TOOLS_CHANGED
    return Cause.UNKNOWN if difference is not None and difference.in_head else Cause.TOOLS_CHANGED


def _sent(told: Explanation, hunk: Hunk, difference: Difference, summaries: Iterable[Summary]) -> Explanation:
    told = replace(told, message=difference.at, role=difference.role, field=difference.field or None)
    for cause, rule in sent.RULES:
        if cause is Cause.COMPACTION and _quoted(difference, summaries):
            return replace(told, cause=cause, evidence="what a call summed up stands in the place of earlier turns")
        evidence = rule(difference)
        if evidence is not None:
            return replace(told, cause=cause, evidence=evidence)
    if difference.gone is None and _first_words(difference):
        return replace(told, cause=Cause.OTHER_CONVERSATION, evidence="no turn is shared but the system prompt")
    return replace(told, evidence=f"message {difference.at} differs in {difference.field or 'being there'}")


def _quoted(difference: Difference, summaries: Iterable[Summary]) -> bool:
    """An assistant turn quotes only a marked summary: another one may be a reply that was kept."""
    stop = len(difference.theirs) if difference.come is None else difference.at + difference.come
    fresh = [difference.theirs[index] for index in range(difference.at, stop)]
    return any(
        any(said in turn.text() for said in quotable)
        for quotable, marked in summaries
        for turn in fresh
        if turn.role != "tool" and (marked or turn.role != "assistant")
    )


def _first_words(difference: Difference) -> bool:
    """Whether all that the two histories share are system messages."""
    return all(difference.ours[index].role in HEAD for index in range(min(difference.at, len(difference.ours))))


def _rendered(told: Explanation, hunk: Hunk, place: Place, turns: Turns) -> Explanation:
    for cause, rule in rendered.RULES:
        evidence = rule(hunk, place, turns)
        if evidence is not None:
            return _at_place(
                replace(told, cause=cause, evidence=evidence), rendered.narrowed(cause, place, turns), turns
            )
    alike = "the messages are alike, and so are their texts as far as is known"
    return _at_place(replace(told, evidence=alike), place, turns)


def _at_place(told: Explanation, place: Place, turns: Turns) -> Explanation:
    """The message, where there is but one candidate."""
    if place.last - place.first > 1 or place.last >= len(turns):
        return told
    return replace(told, message=place.last, role=turns[place.last].role, field=place.field)


def _counted(tree: CallTree, told: Explanation, counted: dict[str, int]) -> Explanation:
    """With the sampled tokens that lie behind the break and were not counted for another one before."""
    if told.nearest is None or told.cause is Cause.OTHER_CONVERSATION:
        return told
    lost = 0
    for call in _left(tree, told):
        entry = tree.entries[call]
        start = max(len(entry.prompt_token_ids), told.first_divergence)
        stop = counted.get(call, entry.length)
        lost += max(0, stop - start)
        counted[call] = min(start, stop)
    return replace(told, tokens_lost=lost)


def _left(tree: CallTree, told: Explanation) -> Iterator[str]:
    """The calls of the history that was left which sampled something behind the break, and came before the call."""
    assert told.nearest is not None
    at, leaver = told.first_divergence, tree.entries[told.call]
    beyond = [call for call in tree.upwards(told.nearest) if tree.entries[call].length > at]
    yield from beyond
    ahead = [*tree.children.get(told.nearest, ())]
    while ahead:
        call = ahead.pop()
        if call != told.call and _before(tree.entries[call], leaver) and len(tree.entries[call].prompt_token_ids) > at:
            yield call
            ahead.extend(tree.children.get(call, ()))
