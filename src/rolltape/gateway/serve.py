"""Start and stop a gateway: engine, store, socket, server - in that order, and back.

`running` is the whole life of one, for commands that need a gateway beside other work; `serve_forever` adds signals.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rolltape import registry
from rolltape.config import EngineConfig, ServeConfig
from rolltape.engines import Engine
from rolltape.errors import ConfigError
from rolltape.gateway.app import Gateway
from rolltape.gateway.connection import bounded
from rolltape.gateway.destination import open_store
from rolltape.gateway.retention import sweeping
from rolltape.harness.kinds import classifier
from rolltape.harness.profile import Profile
from rolltape.store import CaptureStore

TOKEN_FILE = "control-token"
_TOKEN_VARIABLE = "ROLLTAPE_CONTROL_TOKEN"
_BACKLOG = 2048
_IDLE_SECONDS = 620  # longer than any harness keeps an idle connection, so the gateway never resets a reused one

_GRACE_SECONDS = 10
"""How long calls in flight may go on when the gateway is told to stop."""
_SETTLE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that is serving."""

    url: str
    control_token: str
    store: CaptureStore
    engine: Engine


class _Server(uvicorn.Server):
    """Signals belong to the command, not to the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def running(
    config: ServeConfig,
    *,
    engine: Engine | None = None,
    profiles: Sequence[Profile] = (),
    engines: Mapping[str, Engine] | None = None,
) -> AsyncIterator[RunningGateway]:
    """A gateway that serves while the body runs. `engine`: use this one (started by the caller) instead of making one;
    `engines` are such ones for the others that the configuration names.
    `profiles` tell kinds of calls apart beside those that are installed, and before one of the same name.

    Raises `ConfigError` when the port is taken, the engine cannot start or the store cannot be opened.
    """
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(config.host, config.port))
        directory, given = Path(config.dir), dict(engines or {})
        store = await open_store(config)
        stack.push_async_callback(store.close)
        token = control_token(config, directory)
        if engine is None:
            engine = await _started(stack, config.engine)
        beside = {name: await _started(stack, chosen) for name, chosen in config.engines.items() if name not in given}
        known = {**registry.profiles(), **{profile.name: profile for profile in profiles}}
        others = {**beside, **given}
        gateway = Gateway(config, engine, store, registry.protocols(), token, classifier(known), others)
        stack.push_async_callback(gateway.calls.marks.close)
        await stack.enter_async_context(sweeping(store, config.retention))
        await stack.enter_async_context(_serving(gateway, listener))
        yield RunningGateway(_url(config.host, listener), token, store, engine)


async def _started(stack: AsyncExitStack, chosen: EngineConfig) -> Engine:
    """A new engine, started; the stack closes it."""
    engine = registry.engine(chosen.kind, model=chosen.model, url=chosen.url, options=dict(chosen.options))
    stack.push_async_callback(engine.close)
    await engine.start()
    return engine


@asynccontextmanager
async def _serving(gateway: Gateway, listener: socket.socket) -> AsyncIterator[None]:
    server = _Server(
        uvicorn.Config(
            gateway,
            http=bounded(gateway.config.limits),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            server_header=False,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise ConfigError("the server stopped before it was ready")
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await task
        cancelled = list(
            server.server_state.tasks
        )  # calls that outlasted the patience: they settle before the store goes
        if cancelled:
            await asyncio.wait(cancelled, timeout=_SETTLE_SECONDS)


@contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        hint = "choose another with --port, or --port 0 for any free one"
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", hint=hint) from error
    # Accepted sockets inherit it. asyncio sets it only where a socket says IPPROTO_TCP, which these do not, and without
    # it the second write of a reply waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - shown, not bound
    return f"http://{shown}:{port}"


def control_token(config: ServeConfig, directory: Path) -> str:
    """The token of the control API: given, from the environment, kept beside the store, or made and kept there."""
    given = config.control_token or os.environ.get(_TOKEN_VARIABLE)
    if given:
        return given
    path = directory / TOKEN_FILE
    try:
        return path.read_text(encoding="ascii").strip() or _make_token(path)
    except FileNotFoundError:
        return _make_token(path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} holds no control token", hint="remove it, and another is made") from error


def _make_token(path: Path) -> str:
    """A new token in the file at `path`, durable and whole. Where gateways start at once, the first one's counts."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32))
            file.flush()
            os.fsync(file.fileno())
        if path.exists() and not path.read_text(encoding="ascii").strip():
            path.unlink()
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        unfinished.unlink()
    return path.read_text(encoding="ascii").strip()


async def serve_forever(config: ServeConfig, ready: Callable[[RunningGateway], None]) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called once, when the first request would be answered."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running(config) as gateway:
        ready(gateway)
        await stop.wait()
