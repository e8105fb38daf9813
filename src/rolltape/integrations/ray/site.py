"""What an actor stands on: a gateway, a connection to it, a token source; opened in this order, closed in reverse."""

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rolltape.client import Connection, connect
from rolltape.config import ServeConfig
from rolltape.errors import ConfigError
from rolltape.gateway.serve import running
from rolltape.harness import Profile
from rolltape.store import TokenSource
from rolltape.store.relay import Relay

TokenSourceFactory = Callable[[], TokenSource | Awaitable[TokenSource]]
_METHODS = ("freeze", "drop", "close")


@dataclass(frozen=True, slots=True)
class GatewayAt:
    """A gateway that is serving elsewhere; it is left running. `dir`: where workspaces lie on the actor's node."""

    url: str
    control_token: str = field(repr=False)
    dir: str


@dataclass(frozen=True, slots=True)
class Site:
    """The open parts. `context_length` is the model's, in tokens; None = not known."""

    connection: Connection
    source: TokenSource
    model: str
    context_length: int | None
    workspaces: Path


@asynccontextmanager
async def open_site(
    gateway: ServeConfig | GatewayAt, factory: TokenSourceFactory | None, profiles: Sequence[Profile]
) -> AsyncIterator[Site]:
    """Raises `ConfigError` for whatever cannot start. Without a factory the gateway's own store is the source.

    A source that the factory made is closed here, before the gateway; the gateway closes its own store.
    """
    async with AsyncExitStack() as stack:
        connection, source = await _gateway(stack, gateway, profiles)
        if factory is not None:
            source = await source_from(factory)
            stack.push_async_callback(source.close)
        elif isinstance(source, Relay) and isinstance(gateway, ServeConfig) and gateway.capturing:
            hint = "give token_source_factory: it is called in the actor and returns that transport's TokenSource"
            raise ConfigError(f"the gateway writes to {gateway.destination}, which it cannot read back", hint=hint)
        model, context_length = next(iter((await connection.models()).items()))
        yield Site(connection, source, model, context_length, Path(gateway.dir) / "workspaces")


async def _gateway(
    stack: AsyncExitStack, gateway: ServeConfig | GatewayAt, profiles: Sequence[Profile]
) -> tuple[Connection, TokenSource]:
    if isinstance(gateway, GatewayAt):
        connection = await stack.enter_async_context(connect(gateway.url, gateway.control_token))
        return connection, connection.source()
    # Actors on one node must not fight over a port; and an agent with a shell must not write to another's rollout.
    config = replace(gateway, port=0, auth=gateway.auth or "keys")
    served = await stack.enter_async_context(running(config, profiles=profiles))
    return await stack.enter_async_context(connect(served.url, served.control_token)), served.store


async def source_from(factory: TokenSourceFactory) -> TokenSource:
    """What `factory` makes. Raises `ConfigError` where it fails or makes no TokenSource."""
    try:
        made: Any = factory()
        made = await made if inspect.isawaitable(made) else made
    except Exception as error:  # the boundary: a factory may do anything, and nothing was served yet
        raise ConfigError(f"token_source_factory failed: {type(error).__name__}: {error}") from error
    wrong = _wrong(made)
    if not wrong:
        source: TokenSource = made
        return source
    if inspect.iscoroutinefunction(getattr(made, "close", None)) and not inspect.isclass(made):
        with contextlib.suppress(Exception):  # what does not fit is the news, whatever its own closing says
            await made.close()
    raise ConfigError(
        f"token_source_factory gave no TokenSource: {wrong}",
        hint="it must return an object with `async def` freeze, drop and close",
    )


def _wrong(made: Any) -> str:
    """What keeps `made` from being a TokenSource; "" if nothing does."""
    if inspect.isclass(made):
        return f"the class {made.__name__} itself, not an object of it"
    name = type(made).__name__
    lacking = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if lacking:
        return f"{name} has no {', '.join(lacking)}"
    plain = [method for method in _METHODS if not inspect.iscoroutinefunction(getattr(made, method))]
    return f"{name}.{plain[0]} cannot be awaited" if plain else ""
