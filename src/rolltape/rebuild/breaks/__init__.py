"""Named breaks: where a prompt left the tokens of the call before it, in which message, why, and what to do. Pure.

Nothing here decides what is trained; rows come from ids alone. This room reads the texts, which rows never do, to tell
people why a chain ended.

    cause        the names, their meaning, what to do
    talk         the messages of a call, compared as a template sees them
    place        from a token's position to its message
    difference   the two histories lined up
    hunk         the two sides in tokens
    sent         rules for what the harness changed        rendered   rules for what rendering changed
    explain      all of it together
"""

from rolltape.rebuild.breaks.cause import ADVICE, MEANING, Cause
from rolltape.rebuild.breaks.explain import Explanation, explain, named, tree_of
from rolltape.rebuild.breaks.hunk import Token, TokenText

__all__ = ["ADVICE", "MEANING", "Cause", "Explanation", "Token", "TokenText", "explain", "named", "tree_of"]
