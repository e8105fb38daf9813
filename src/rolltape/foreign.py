"""Objects of other people's classes, built by name at start-up: `module.path:ClassName` and its arguments.

Everything that can be wrong with such a class is found here, before anything is served: a path that names nothing,
arguments that its constructor does not take, methods that it lacks or that cannot be awaited. Arguments may hold
secrets, so their values are struck out of every message.
"""

import contextlib
import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rolltape.errors import ConfigError
from rolltape.registry import nearest

_STRUCK_OUT = "***"


@dataclass(frozen=True, slots=True)
class ForeignClass:
    """A class as the operator names it: `option` is where it stands in the configuration."""

    option: str
    path: str
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def scrub(self, text: object) -> str:
        """`text` without the values that the constructor was given."""
        shown = str(text)
        for secret in sorted(set(_leaves(self.kwargs)), key=len, reverse=True):
            shown = shown.replace(secret, _STRUCK_OUT)
        return shown


async def build(named: ForeignClass, *, required: Mapping[str, str], optional: Iterable[str] = ()) -> Any:
    """A new object of that class with every `required` method (name to why it is needed); `optional` ones may be there.

    Raises `ConfigError`; an object that was built and does not fit is closed first.
    """
    built = _construct(named, _load(named))
    try:
        _check_methods(named, built, required, optional)
    except ConfigError:
        if _awaitable(getattr(built, "close", None)):
            with contextlib.suppress(Exception):  # what does not fit is the news, whatever its own closing says
                await built.close()
        raise
    return built


def _load(named: ForeignClass) -> Any:
    module_path, _, name = named.path.partition(":")
    if not module_path or not name:
        raise ConfigError(f"{named.option} must be module.path:ClassName, not {named.path!r}", hint=_with_colon(named))
    try:
        module = importlib.import_module(module_path)
    except Exception as error:  # the boundary: a module may do anything while it is imported
        hint = "it must be installed in the environment that the gateway runs in"
        told = f"{type(error).__name__}: {named.scrub(error)}"
        raise ConfigError(f"{named.option} {named.path}: {module_path} cannot be imported: {told}", hint=hint) from None
    found: Any = module
    for part in name.split("."):
        inside, found = found, getattr(found, part, None)
        if found is None:
            hint = nearest(part, tuple(word for word in dir(inside) if not word.startswith("_")))
            raise ConfigError(f"{named.option} {named.path}: there is no {part!r} in {module_path}", hint=hint)
    if not callable(found):
        raise ConfigError(f"{named.option} {named.path} is no class: {type(found).__name__} cannot be called")
    return found


def _with_colon(named: ForeignClass) -> str:
    module, dot, name = named.path.rpartition(".")
    return f"did you mean {module}:{name}?" if dot and ":" not in named.path else ""


def _construct(named: ForeignClass, factory: Any) -> Any:
    known = _parameters(factory)
    try:
        if known is not None:
            known.bind(**named.kwargs)
    except TypeError as error:
        raise ConfigError(f"{named.option} {named.path}: {error}", hint=_about_arguments(named, known)) from None
    try:
        return factory(**named.kwargs)
    except Exception as error:  # the boundary: whatever a constructor raises, nothing was served yet
        told = f"{type(error).__name__}: {named.scrub(error)}"
        raise ConfigError(f"{named.option} {named.path} cannot be constructed: {told}") from None


def _parameters(factory: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError):
        return None  # written in C and silent about its arguments: the call itself will tell


def _about_arguments(named: ForeignClass, known: inspect.Signature | None) -> str:
    names = tuple(known.parameters) if known else ()
    unknown = [name for name in named.kwargs if name not in names]
    close = nearest(unknown[0], names) if unknown else ""
    return close or (f"it takes {', '.join(names)}" if names else "it takes no arguments")


def _check_methods(named: ForeignClass, built: Any, required: Mapping[str, str], optional: Iterable[str]) -> None:
    for name, why in required.items():
        if getattr(built, name, None) is None:
            raise ConfigError(f"{named.option} {named.path} has no {name}", hint=why)
    for name in (*required, *optional):
        method = getattr(built, name, None)
        if method is not None and not _awaitable(method):
            hint = f"write it as `async def {name}`"
            raise ConfigError(f"{named.option} {named.path}: {name} cannot be awaited", hint=hint)


def _awaitable(method: Any) -> bool:
    if method is None:
        return False
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004


def _leaves(value: Any) -> Iterator[str]:
    """Every text in nested arguments; what is too short to be a secret would strike out half of a sentence."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
        yield value


_SHORTEST_SECRET = 4
