"""Configuration: one strict YAML file, then flags on top, frozen from then on.

Unknown keys are errors that name the nearest known one: a run with a typo must not look configured. Secrets are never
printed: `control_token` is left out of every representation.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from rolltape.chat import SAMPLING_FIELDS
from rolltape.errors import ConfigError
from rolltape.registry import nearest


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What samples. `kind` is a registered engine; `options` go to its constructor."""

    kind: str = "llamacpp"
    url: str | None = None
    model: str | None = None
    options: dict[str, Any] = {}


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds, in seconds and bytes."""

    max_body_bytes: Annotated[int, msgspec.Meta(gt=0)] = 32 * 2**20
    """Largest request body, as sent and as expanded."""
    keep_alive_seconds: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    """Silence in a stream after which a keep-alive frame is sent; clients give up after 60 s and more."""
    first_byte_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """How long an error can still get its own HTTP status before a stream is opened to keep its client alive."""
    durable_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long a finished reply waits for its durable entry before it is released and the rollout marked."""
    settle_seconds: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """How long a freeze waits for calls in flight."""


class ServeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that `rolltape serve` can be told."""

    engine: EngineConfig = EngineConfig()
    dir: str = "rolltape-data"
    """Where the store lives: node-local disk."""
    host: str = "127.0.0.1"
    port: int = 8787
    """0 = any free port; the ready line tells it."""
    auth: Literal["open", "keys"] | None = None
    """open: a path or header names the rollout. keys: its API key must. None: open on loopback, keys elsewhere."""
    untagged: Literal["serve", "refuse"] = "serve"
    """What happens to a model call that names no rollout."""
    strict: bool = False
    """True: a call whose entry cannot be made durable fails. False: it succeeds and the rollout is marked."""
    texts: bool = True
    """Keep requests and replies as text beside the tokens, for people."""
    sampling_overrides: dict[str, Any] = {}
    """Applied last, over everything a harness sends."""
    model_aliases: tuple[str, ...] = ()
    """Further model names that the engine's model answers to; "*" = any."""
    control_token: str | None = None
    limits: Limits = Limits()

    def __repr__(self) -> str:
        return f"ServeConfig(engine={self.engine!r}, dir={self.dir!r}, host={self.host!r}, port={self.port})"

    @property
    def loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def auth_mode(self) -> Literal["open", "keys"]:
        return self.auth or ("open" if self.loopback else "keys")


def read_config(path: Path | None, **flags: Any) -> ServeConfig:
    """The file's values with the given flags on top (None = flag not given). `engine_*` flags go to `engine`."""
    values = _read_yaml(path) if path else {}
    engine = values.get("engine") or {}
    if not isinstance(engine, dict):
        raise ConfigError(f"engine must be a mapping, not {engine!r}", hint="for example engine: {kind: scripted}")
    engine = dict(engine)
    for name, value in flags.items():
        if value is None:
            continue
        if name.startswith("engine_"):
            engine[name.removeprefix("engine_")] = value
        else:
            values[name] = value
    config = _convert({**values, "engine": engine}, ServeConfig)
    return _checked(config)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of options")
    return values


def _convert(values: dict[str, Any], kind: type[ServeConfig]) -> ServeConfig:
    _refuse_unknown(values, kind, "")
    _refuse_unknown(values["engine"], EngineConfig, "engine.")
    if isinstance(values.get("limits"), dict):
        _refuse_unknown(values["limits"], Limits, "limits.")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"bad option: {error}") from error


def _refuse_unknown(values: dict[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    known = kind.__struct_fields__
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown option {where}{name}", hint=nearest(str(name), known))


def _checked(config: ServeConfig) -> ServeConfig:
    for name in config.sampling_overrides:
        if name not in SAMPLING_FIELDS:
            raise ConfigError(
                f"sampling_overrides cannot pin {name!r}", hint=nearest(name, tuple(sorted(SAMPLING_FIELDS)))
            )
    if config.auth == "open" and not config.loopback:
        raise ConfigError(
            f"auth: open serves anyone who reaches {config.host}",
            hint="leave auth out (keys is the default off loopback), or bind to 127.0.0.1",
        )
    if not 0 <= config.port < 2**16:
        raise ConfigError(f"port {config.port} is none")
    return config
