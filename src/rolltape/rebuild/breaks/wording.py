"""What words tell of a text that a harness wrote by itself: reminders, and what compaction leaves. Pure.

Every harness has its own, so these are few and broad; none of them decides anything about tokens.
"""

import re

REMINDER = re.compile(
    r"<([\w-]*(?:reminder|context|env|environment|notification|info|instructions)[\w-]*)>.*?</\1>", re.S
)
SUMMARY = re.compile(
    r"<summary>|<state_snapshot>|what did we do so far|summar(?:y|ise|ize) of (?:the|our|this)"
    r"|continued from a previous|conversation (?:was|has been) (?:compacted|summari[sz]ed|truncated)"
    r"|(?:earlier|previous|older) (?:messages|turns|conversation|history)[^.]{0,40}"
    r"(?:removed|omitted|dropped|truncated|summari[sz]ed)",
    re.I,
)
CLEARED = re.compile(r"(?:cleared|omitted|elided|truncated|removed|compacted|pruned|no longer available)", re.I)
_SHORTEST_QUOTE = 32  # characters of a summary that are no accident when they come again


def without_reminders(text: str) -> str:
    return REMINDER.sub("", text).strip()


def only_reminders(text: str) -> bool:
    return bool(text.strip()) and not without_reminders(text)


def quotable(reply: str) -> tuple[str, ...]:
    """What `reply` says, and the part of it that it marks as its summary, where they are long enough to be known by."""
    marked = re.search(r"<(summary|state_snapshot)>(.*?)(?:</\1>|\Z)", reply, re.S)
    said = [reply.strip(), *([marked[2].strip()] if marked else [])]
    return tuple(one for one in said if len(one) >= _SHORTEST_QUOTE)
