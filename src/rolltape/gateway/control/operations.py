"""Annotated methods become routes.

A method's parameters say what it takes: `rollout_id` from the path, `body` as a struct, `request` as it came, and every
other one from the query, where it is one of a few words. What it returns is what the document says it gives.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from starlette.requests import Request

from rolltape.errors import RequestError
from rolltape.record import is_rollout_id
from rolltape.registry import nearest

Handler = Callable[..., Awaitable[Any]]
_Method = TypeVar("_Method", bound=Handler)
_MARK = "_operation"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path. `query`: the words that each parameter may be, and the default first among them."""

    method: str
    path: str
    name: str
    summary: str
    takes: Any
    """The struct that the body is decoded as, None = there is no body."""
    gives: Any
    query: Mapping[str, tuple[str, ...]]
    errors: tuple[int, ...]
    guarded: bool
    """It wants the control token."""

    @property
    def of_one_rollout(self) -> bool:
        return "{rollout_id}" in self.path


def operation(method: str, path: str, *errors: int, guarded: bool = True) -> Callable[[_Method], _Method]:
    """Marks a method of the API as the handler of `method` on `path`; `errors` are the statuses of its own."""

    def mark(handler: _Method) -> _Method:
        hints = get_type_hints(handler, include_extras=True)
        query = {
            name: (parameter.default, *(word for word in get_args(hints[name]) if word != parameter.default))
            for name, parameter in inspect.signature(handler).parameters.items()
            if name not in ("self", "request", "body", "rollout_id")
        }
        taken = errors
        if query or "body" in hints or "rollout_id" in hints:
            taken += (400,)
        if "body" in hints:
            taken += (408, 413)
        if guarded:
            taken += (401, 500, 501, 503)
        summary = " ".join((handler.__doc__ or "").split())
        takes, gives = hints.get("body"), hints["return"]
        made = Operation(method, path, handler.__name__, summary, takes, gives, query, tuple(sorted({*taken})), guarded)
        setattr(handler, _MARK, made)
        return handler

    return mark


def operations(api: type) -> Iterator[Operation]:
    """The marked methods of a class, in the order in which they stand."""
    for member in vars(api).values():
        found = getattr(member, _MARK, None)
        if isinstance(found, Operation):
            yield found


def arguments(made: Operation, request: Request) -> dict[str, Any]:
    """What the path and the query say. Raises 400."""
    words = {name: _word(name, request.query_params.getlist(name), allowed) for name, allowed in made.query.items()}
    for name in request.query_params:
        if name not in made.query:
            hint = nearest(name, tuple(made.query)) or "this route knows none" * (not made.query)
            raise RequestError(400, "bad_query", f"unknown query parameter {name[:80]!r}", hint=hint)
    if made.of_one_rollout:
        words["rollout_id"] = checked_id(request.path_params["rollout_id"])
    return words


def _word(name: str, given: list[str], allowed: tuple[str, ...]) -> str:
    if not given:
        return allowed[0]
    if len(given) > 1 or given[0] not in allowed:
        raise RequestError(400, f"bad_{name}", f"{name} is one of {', '.join(allowed)}, not {', '.join(given)[:80]!r}")
    return given[0]


def checked_id(rollout_id: str) -> str:
    """Raises 400 where it is none."""
    if not is_rollout_id(rollout_id):
        raise RequestError(400, "invalid_rollout_id", f"{rollout_id[:210]!r} is no rollout id")
    return rollout_id
