"""Which protocol a path belongs to. Pure.

Most routes are plain paths. One that names the model in the path, as `/v1beta/models/{model}:generateContent` does,
is a pattern; clients may send its colon encoded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolltape.wire import ListsModels, WireProtocol

_COMMON_DIALECT = "openai_chat"
"""Words errors on paths that belong to no protocol."""
COMMON_MODELS = "/v1/models"


@dataclass(frozen=True, slots=True)
class Route:
    """A route of `protocol`. `counts`: it counts a request's tokens and samples nothing."""

    path: str
    protocol: WireProtocol
    counts: bool


class Routes:
    """All routes of some protocols."""

    def __init__(self, protocols: Sequence[WireProtocol]) -> None:
        routes = [Route(path, p, counts) for p in protocols for path, counts in _paths(p)]
        self._plain = {route.path: route for route in routes if "{" not in route.path}
        self._patterns = [(_pattern(route.path), route) for route in routes if "{" in route.path]
        self._default = next((p for p in protocols if p.name == _COMMON_DIALECT), protocols[0])
        self._listing = [p for p in protocols if isinstance(p, ListsModels)]

    def find(self, path: str) -> Route | None:
        """The route that is asked for, None where there is none."""
        fits = (route for pattern, route in self._patterns if pattern.match(path))
        return self._plain.get(path) or next(fits, None)

    def nearest(self, path: str) -> WireProtocol:
        """The protocol that words an error on a path that is no route: the one below whose routes it lies."""
        below = (route.protocol for at, route in self._plain.items() if path.startswith(f"{at}/"))
        own = (route.protocol for _, route in self._patterns if _first(path) == _first(route.path) not in self._shared)
        return next(below, next(own, self._default))

    def listing(self, path: str, headers: Mapping[str, str]) -> tuple[ListsModels | None, str] | None:
        """Whether `path` lies on a list of models: whose (None = the common one), and the model's name, "" for all."""
        if self.find(path) is not None:
            return None
        for protocol in self._listing:
            for at in protocol.models_paths:
                if _within(path, at) and (at != COMMON_MODELS or protocol.is_client(headers)):
                    return protocol, path.removeprefix(at).strip("/")
        return (None, path.removeprefix(COMMON_MODELS).strip("/")) if _within(path, COMMON_MODELS) else None

    @property
    def sampling(self) -> str:
        """The routes that sample, for people."""
        routes = [*self._plain.values(), *(route for _, route in self._patterns)]
        return ", ".join(sorted(route.path for route in routes if not route.counts))

    @property
    def _shared(self) -> set[str]:
        """First segments that plain routes have."""
        return {_first(path) for path in self._plain}


def _within(path: str, at: str) -> bool:
    return path == at or path.startswith(f"{at}/")


def _paths(protocol: WireProtocol) -> list[tuple[str, bool]]:
    return [*((path, False) for path in protocol.paths), *((path, True) for path in protocol.counting_paths)]


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\{model\}", ".+").replace(":", "(?::|%3[Aa])") + "$")


def _first(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
