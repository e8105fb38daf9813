"""From a YAML file to frozen values: interpolations resolved, NeMo Gym's nesting taken apart, every key checked.

A top-level key that is no option is a variable if some `${...}` in the file names it, else an error. While capture is
off, the options of its block that hold an interpolation are left alone: an endpoint that only a training run has in its
environment must not stop an evaluation.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from rolltape.chat import SAMPLING_FIELDS
from rolltape.config import capture
from rolltape.config.capture import AgentOptions, TokenIdCapture
from rolltape.config.values import POLICY, ContinueConfig, EngineConfig, Limits, Retention, ServeConfig
from rolltape.errors import ConfigError
from rolltape.rebuild import read_policy
from rolltape.registry import nearest

_BLOCK = "token_id_capture"
_SEEDS_BLOCK = ("env", "nemo_gym", _BLOCK)
_SEEDS_AGENTS = "responses_api_agents"
_NAMED = re.compile(r"\$\{\s*(?:oc\.select:\s*)?(\w+)")


def read_config(path: Path | None, **flags: Any) -> ServeConfig:
    """The file's values with the given flags on top (None = flag not given). `engine_*` flags go to `engine`."""
    values = _unnested(_read(path)) if path else {}
    given = {name: value for name, value in flags.items() if value is not None}
    values |= {name: value for name, value in given.items() if not name.startswith("engine_")}
    engines = dict(_mapping(values, "engines", "for example engines: {helper: {kind: vllm, url: ...}}"))
    if POLICY in engines and values.get("engine"):
        raise ConfigError(f"the policy's engine is given twice: as engine and as engines.{POLICY}")
    values["engine"] = engines.pop(POLICY, None) or values.get("engine")
    engine = dict(_mapping(values, "engine", "for example engine: {kind: scripted}"))
    engine |= {name.removeprefix("engine_"): value for name, value in given.items() if name.startswith("engine_")}
    if flags.get("dir") is None and (directory := _store_directory(values)):
        values["dir"] = directory
    return _checked(_convert({**values, "engine": engine, "engines": engines}))


def _mapping(values: dict[str, Any], name: str, example: str) -> dict[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{name} must be a mapping, not {type(found).__name__}", hint=example)
    return found


def _store_directory(values: dict[str, Any]) -> str | None:
    """The capture block's own directory, where a file store is in it."""
    block = values.get(_BLOCK)
    return block.get("dir") if isinstance(block, dict) and not block.get("sink") else None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {_place(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of options")
    return _resolved(path, text, values) if "${" in text else values


def _place(error: Exception) -> str:
    """Where and what, without the lines around it: they may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error).partition("\n")[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"


def _resolved(path: Path, text: str, values: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf  # half of the start-up time of a gateway that needs none of it
    from omegaconf.errors import OmegaConfBaseException

    try:
        tree = OmegaConf.create(values)
        for block in _blocks(values):
            _leave_alone_what_is_off(OmegaConf.select(tree, ".".join(block)))
        resolved: Any = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        where = f"{error.full_key}: " if getattr(error, "full_key", None) else ""
        hint = "set it, or give a default: ${oc.env:NAME,default}" if "oc.env" in text else ""
        raise ConfigError(f"{path}: {where}{str(error).partition(chr(10))[0]}", hint=hint) from None
    variables = set(_NAMED.findall(text)) - set(_OPTIONS)
    return {name: value for name, value in resolved.items() if name not in variables}


def _blocks(values: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Where a capture block is, in either nesting."""
    for where in ((_BLOCK,), _SEEDS_BLOCK):
        found: Any = values
        for name in where:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, dict):
            yield where


def _leave_alone_what_is_off(block: Any) -> None:
    if str(block.get("enabled", False)).lower() in ("true", "1"):
        return
    from omegaconf import OmegaConf

    raw: Any = OmegaConf.to_container(block, resolve=False)
    for name in TokenIdCapture.__struct_fields__:
        if name != "enabled" and "${" in str(raw.get(name)):
            del block[name]


def _unnested(values: dict[str, Any]) -> dict[str, Any]:
    """NeMo Gym's own nesting, `env.nemo_gym.token_id_capture` and `responses_api_agents`, where Rolltape has it."""
    rest = dict(values)
    if "env" in rest:
        inner: Any = rest.pop("env")
        for depth, name in enumerate(_SEEDS_BLOCK[1:], 1):
            inner = _only(inner, name, ".".join(_SEEDS_BLOCK[:depth]))
        _move(rest, _BLOCK, inner, ".".join(_SEEDS_BLOCK))
    if _SEEDS_AGENTS in rest:
        theirs, ours = rest.pop(_SEEDS_AGENTS), rest.pop("agents", None)
        twice = set(theirs) & set(ours) if isinstance(theirs, dict) and isinstance(ours, dict) else set()
        if twice:
            raise ConfigError(f"agent {min(twice)} is given twice: under agents and under {_SEEDS_AGENTS}")
        for given, where in ((theirs, _SEEDS_AGENTS), (ours, "agents")):
            if given is not None and not isinstance(given, dict):
                raise ConfigError(f"{where} must be a mapping of agents, not {type(given).__name__}")
        rest["agents"] = {**(ours or {}), **(theirs or {})}
    return rest


def _only(holder: Any, name: str, where: str) -> Any:
    if not isinstance(holder, dict):
        raise ConfigError(f"{where} must be a mapping, not {type(holder).__name__}")
    for other in holder:
        if other != name:
            raise ConfigError(
                f"unknown option {where}.{other}", hint=nearest(str(other), (name,)) or f"{name} goes here"
            )
    return holder.get(name)


def _move(values: dict[str, Any], name: str, found: Any, where: str) -> None:
    if found is None:
        return
    if name in values:
        raise ConfigError(f"{name} is given twice: at the top and as {where}")
    values[name] = found


def _convert(values: dict[str, Any]) -> ServeConfig:
    _refuse_unknown(values, ServeConfig, "")
    for name, kind in (
        ("engine", EngineConfig),
        ("limits", Limits),
        ("retention", Retention),
        ("continuing", ContinueConfig),
        (_BLOCK, TokenIdCapture),
    ):
        _refuse_unknown(values.get(name), kind, f"{name}.")
    for name, chosen in values["engines"].items():
        _refuse_unknown(chosen, EngineConfig, f"engines.{name}.")
    agents = values.get("agents")
    for name, options in agents.items() if isinstance(agents, dict) else ():
        _refuse_unknown(options, AgentOptions, f"agents.{name}.")
    try:
        return msgspec.convert(values, ServeConfig, strict=False)  # what comes from an environment is text
    except msgspec.ValidationError as error:
        raise ConfigError(f"bad option: {error}") from None


def _refuse_unknown(values: Any, kind: type[msgspec.Struct], where: str) -> None:
    known = kind.__struct_fields__
    for name in values if isinstance(values, dict) else ():
        if name not in known:
            raise ConfigError(f"unknown option {where}{name}", hint=nearest(str(name), known))


def _checked(config: ServeConfig) -> ServeConfig:
    read_policy(config.call_policy)
    for name in config.sampling_overrides:
        if name not in SAMPLING_FIELDS:
            raise ConfigError(
                f"sampling_overrides cannot pin {name!r}", hint=nearest(name, tuple(sorted(SAMPLING_FIELDS)))
            )
    names = (POLICY, *config.engines)
    for alias, engine in config.aliases.items():
        if engine not in names:
            raise ConfigError(
                f"model_aliases: {alias!r} goes to {engine!r}, and no engine has that name",
                hint=nearest(engine, names) or f"there are: {', '.join(names)}",
            )
    if config.auth == "open" and not config.loopback:
        raise ConfigError(
            f"auth: open serves anyone who reaches {config.host}",
            hint="leave auth out (keys is the default off loopback), or bind to 127.0.0.1",
        )
    if not 0 <= config.port < 2**16:
        raise ConfigError(f"port {config.port} is none")
    if config.token_id_capture is not None:
        capture.check(config.token_id_capture)
    return config


_OPTIONS = (*ServeConfig.__struct_fields__, "env", _SEEDS_AGENTS)
