"""`rolltape serve`: a gateway until it is interrupted."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rolltape.cli import terminal
from rolltape.config import ServeConfig, read_config
from rolltape.gateway.serve import RunningGateway, serve_forever


def serve(
    config: Annotated[Path | None, Parameter(help="A YAML file with the same options and more.")] = None,
    /,
    *,
    engine: Annotated[
        str | None, Parameter(help="What samples: llamacpp (default), vllm, scripted, or one installed.")
    ] = None,
    engine_url: Annotated[str | None, Parameter(help="Where the engine is: a URL; for scripted a script file.")] = None,
    model: Annotated[str | None, Parameter(help="The model that the engine should serve.")] = None,
    alias: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            show_default=False,
            help="A further name that the model answers to; * = any. NAME=ENGINE: another of the file's engines does.",
        ),
    ] = (),
    dir: Annotated[Path | None, Parameter(env_var="ROLLTAPE_DIR", help="The store's directory.")] = None,
    host: Annotated[str | None, Parameter(help="Address to listen on; 127.0.0.1 if not given.")] = None,
    port: Annotated[int | None, Parameter(help="Port to listen on; 8787 if not given, 0 = any free one.")] = None,
    auth: Annotated[
        Literal["open", "keys"] | None,
        Parameter(help="open: a path names the rollout (default on loopback). keys: the rollout's API key must."),
    ] = None,
    control_token: Annotated[
        str | None,
        Parameter(help="Opens the control API; else ROLLTAPE_CONTROL_TOKEN, else made and kept in DIR/control-token."),
    ] = None,
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print the ready line as JSON on stdout.")
    ] = False,
) -> None:
    """Serve model endpoints that record every call."""
    options = read_config(
        config,
        engine_kind=engine,
        engine_url=engine_url,
        engine_model=model,
        model_aliases=alias or None,
        dir=None if dir is None else str(dir),
        host=host,
        port=port,
        auth=auth,
        control_token=control_token,
    )
    log_to_stderr()
    asyncio.run(serve_forever(options, lambda gateway: _ready(options, gateway, json=json)))


def log_to_stderr() -> None:
    """Warnings of everything, what Rolltape itself does, on stderr."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("rolltape").setLevel(logging.INFO)


def _ready(options: ServeConfig, gateway: RunningGateway, *, json: bool) -> None:
    if json:
        said = {"url": gateway.url, "engine": gateway.engine.kind, "dir": options.dir, "auth": options.auth_mode}
        terminal.print_json(said)
    where = f"engine {gateway.engine.kind}, {options.destination}, auth {options.auth_mode}"
    terminal.note(f"ready: {gateway.url} ({where})")
