"""Extensions by name: the only door to protocols, engines, stores, filters and harness profiles, built-ins included.

An extension is an entry point in the group `rolltape.<kind>s`. Its name is what the operator writes.
"""

import difflib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeAlias, cast

from rolltape.engines import Engine
from rolltape.errors import ConfigError
from rolltape.harness.profile import Profile
from rolltape.wire import WireProtocol

Kind: TypeAlias = Literal["protocol", "engine", "store", "harness", "filter"]


@cache
def _installed(kind: Kind) -> dict[str, EntryPoint]:
    plural = "harnesses" if kind == "harness" else f"{kind}s"
    return {point.name: point for point in entry_points(group=f"rolltape.{plural}")}


def names(kind: Kind) -> tuple[str, ...]:
    """The names that `load` knows, sorted."""
    return tuple(sorted(_installed(kind)))


def load(kind: Kind, name: str) -> Any:
    """The class or function registered as `name`. Raises `ConfigError` naming what there is."""
    point = _installed(kind).get(name)
    if point is None:
        raise ConfigError(
            f"no {kind} is named {name!r}; there are: {', '.join(names(kind))}", hint=nearest(name, names(kind))
        )
    try:
        return point.load()
    except ImportError as error:
        raise ConfigError(f"the {kind} {name!r} cannot be imported: {error}") from error


def engine(kind: str, *, model: str | None, url: str | None, options: dict[str, Any]) -> Engine:
    """A new engine, not started. Options that its constructor does not know are a `ConfigError`."""
    factory = load("engine", kind)
    try:
        return cast("Engine", factory(model=model, url=url, **options))
    except TypeError as error:
        raise ConfigError(f"engine {kind!r} does not take these options: {error}") from error


def protocols() -> tuple[WireProtocol, ...]:
    """One of each installed wire protocol."""
    return tuple(load("protocol", name)() for name in names("protocol"))


def profiles() -> dict[str, Profile]:
    """The harness profiles of every installed package, by name."""
    return {name: profile for group in names("harness") for name, profile in load("harness", group)().items()}


def nearest(name: str, known: tuple[str, ...]) -> str:
    """A hint that names the most similar known word, or ""."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""
