"""Rules for what the template or the tokenizer changed: the messages are alike, and the tokens are not.

Most of them need the texts of tokens. What ids alone can tell is that a run was taken out of a reply.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from rolltape.rebuild.breaks.cause import Cause
from rolltape.rebuild.breaks.hunk import Hunk
from rolltape.rebuild.breaks.place import Place
from rolltape.rebuild.breaks.talk import Turns, is_media

Rule: TypeAlias = Callable[[Hunk, Place, Turns], str | None]

_RUN = 8  # equal tokens in a row that stand for one image
_LONG = 4  # tokens put in; a turn without its thinking has nothing new
_LONGEST = 8  # characters that a token of thinking has at the mean, or fewer


def image(hunk: Hunk, place: Place, turns: Turns) -> str | None:
    """A message here has a part that is no text, and one side repeats one token: the placeholder of an image."""
    if not any(is_media(path) for index in _span(place, turns) for path, _ in turns.fields(index)):
        return None
    at = hunk.at
    sides = hunk.theirs.prompt_token_ids[at : at + _RUN], hunk.ours.prompt_token_ids[at : at + _RUN]
    repeats = any(len(side) == _RUN and len(set(side.tolist())) == 1 for side in sides)
    return "an image takes another number of tokens" if repeats else None


def boundary(hunk: Hunk, place: Place, turns: Turns) -> str | None:
    """The text goes on alike beyond both tokens that differ."""
    return "the text is the same on both sides" if hunk.text and goes_on_alike(hunk, 0) else None


def reasoning(hunk: Hunk, place: Place, turns: Turns) -> str | None:
    """A turn with thinking stands here, and the prompt goes on with what follows the thinking."""
    if hunk.text is not None:
        was, now = (side.decode(errors="ignore") for side in hunk.texts())
        for index in _span(place, turns):
            thought = (turns[index].reasoning or "").strip()[:_RUN]
            if thought and thought in was and thought not in now:
                return "the template leaves the thinking of this turn out"
        empty = [bool(_empty_thinking(side)) for side in (was, now)]
        return "the template leaves an empty thinking block out" if empty[0] != empty[1] else None
    resumed = hunk.resumes()
    longest = max((len(turns[index].reasoning or "") for index in _span(place, turns)), default=0)
    deep = place.reply and hunk.at > place.start + 1
    if not longest or deep or resumed is None:
        return None
    out, put_in = resumed
    if put_in >= _LONG or out <= put_in + 1 or out * _LONGEST < longest:
        return None
    return f"{out} tokens of a turn with thinking are left out"


def arguments(hunk: Hunk, place: Place, turns: Turns) -> str | None:
    """The break lies in the arguments of a call, and both sides are the same letters."""
    if place.field is None or not place.field.endswith(".arguments") or not _same_letters(hunk):
        return None
    return "the template writes the arguments anew"


def whitespace(hunk: Hunk, place: Place, turns: Turns) -> str | None:
    """Both sides are the same letters, with other white space."""
    return "the template writes other white space" if hunk.text and _same_letters(hunk) else None


RULES: Sequence[tuple[Cause, Rule]] = (
    (Cause.IMAGE, image),
    (Cause.TOKENIZER_BOUNDARY, boundary),
    (Cause.REASONING_STRIPPED, reasoning),
    (Cause.TOOL_ARGUMENTS_RESERIALISED, arguments),
    (Cause.WHITESPACE, whitespace),
)


def narrowed(cause: Cause, place: Place, turns: Turns) -> Place:
    """`place` at the message that has what the cause is about, if one has."""
    match cause:
        case Cause.IMAGE:
            found = [at for at in _span(place, turns) if any(is_media(path) for path, _ in turns.fields(at))]
        case Cause.REASONING_STRIPPED:
            found = [at for at in _span(place, turns) if turns[at].reasoning]
        case _:
            return place
    return replace(place, first=found[0], last=found[0], field=None) if found else place


def goes_on_alike(hunk: Hunk, further: int) -> bool:
    """Whether both texts are equal beyond the first token of each, and `further` bytes more unless one ends."""
    was, now = hunk.texts()
    first = hunk.was(), hunk.now()
    if hunk.text is None or first[0] is None or first[1] is None:
        return False
    longer = max(len(hunk.text(token.id)) for token in first if token)
    alike = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    return 0 < longer <= alike and alike >= min(longer + further, len(was), len(now))


def _span(place: Place, turns: Turns) -> range:
    return range(place.first, min(place.last + 1, len(turns)))


def _empty_thinking(text: str) -> bool:
    return "".join(text.split()).startswith(("<think></think>", "</think>"))


def _same_letters(hunk: Hunk) -> bool:
    """Texts that differ at once, in white space, and are otherwise alike for a good while."""
    was, now = (side.decode(errors="ignore") for side in hunk.texts())
    if not was or not now:
        return False
    first = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), None)
    if first is None or not (was[first].isspace() or now[first].isspace()):
        return False
    a, b = "".join(was.split()), "".join(now.split())
    shared = min(len(a), len(b)) * 3 // 4
    return shared > 0 and a[:shared] == b[:shared]
