"""What kind of call a request is - the agent's own turn, a sub-agent's, a compaction - read from the harness's marks.

Pure: headers and a decoded request in, a kind and its evidence out. The marks are data of the harness profile, and the
first that fits decides. Nothing here guesses: a call that no mark fits has no kind. A kind steers only whether tokens
are trained; what belongs together is decided by the tokens themselves.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from rolltape.chat import ChatRequest, Message
from rolltape.harness.profile import KindMark, Profile

_SHOWN = 60  # characters of a match that the evidence quotes

Kind: TypeAlias = tuple[str | None, str | None]
"""A kind and its evidence in words; both None where nothing tells."""

Classify: TypeAlias = Callable[[Mapping[str, str], ChatRequest, Mapping[str, Any]], Kind]
"""Headers (names in lower case), request and the rollout's labels to a kind."""


def classify(marks: Iterable[KindMark], headers: Mapping[str, str], request: ChatRequest) -> Kind:
    """The kind of the first mark whose patterns are all found, and what was found."""
    for mark in marks:
        found = [(place, re.search(pattern, _text(place, headers, request))) for place, pattern in mark.when.items()]
        if all(match for _, match in found):
            return mark.kind, "; ".join(_shown(place, match) for place, match in found if match) or "every call"
    return None, None


def classifier(profiles: Mapping[str, Profile]) -> Classify:
    """Classifies by the profile that the rollout's label `harness` names, else by the one whose user agent fits."""
    by_agent = [(profile.calls.user_agent, profile) for profile in profiles.values() if profile.calls.user_agent]

    def kind_of(headers: Mapping[str, str], request: ChatRequest, labels: Mapping[str, Any]) -> Kind:
        agent = headers.get("user-agent", "")
        fitting = (profile for pattern, profile in by_agent if re.search(pattern, agent))
        profile = profiles.get(str(labels.get("harness"))) or next(fitting, None)
        if profile is None:
            return None, None
        kind, evidence = classify(profile.calls.kinds, headers, request)
        return kind, evidence and f"{profile.name} {profile.version}: {evidence}"

    return kind_of


def unclassified(headers: Mapping[str, str], request: ChatRequest, labels: Mapping[str, Any]) -> Kind:
    """A `Classify` that knows no harness."""
    return None, None


def _text(place: str, headers: Mapping[str, str], request: ChatRequest) -> str:
    match place:
        case "system":
            return "\n".join(message.text() for message in _leading_system(request))
        case "last_user":
            return _ending_user(request)
        case "tools":
            return "\n".join(str(tool.get("function", tool).get("name") or tool.get("type")) for tool in request.tools)
        case "format":
            return msgspec.json.encode(request.response_format).decode() if request.response_format else ""
    return headers.get(place.removeprefix("header:"), "")


def _leading_system(request: ChatRequest) -> Iterable[Message]:
    for message in request.messages:
        if message.role not in ("system", "developer"):
            return
        yield message


def _ending_user(request: ChatRequest) -> str:
    """Reminders in a system's voice may follow what the user said last."""
    last = next((m for m in reversed(request.messages) if m.role not in ("system", "developer")), None)
    return last.text() if last is not None and last.role == "user" else ""


def _shown(place: str, match: "re.Match[str]") -> str:
    text = " ".join(match[0].split())
    return f"{place} has {text[:_SHOWN]!r}" if text else f"no {place}"
