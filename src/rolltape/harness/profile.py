"""Harness profiles: everything that Rolltape knows about a harness, as data.

A profile is a TOML file, converted strictly to `Profile`: an unknown key or placeholder is an error when the file is
read, not when the thousandth rollout starts. Nothing in a profile is code, so a new version of a harness, or a harness
that nobody here has seen, is a new file. Templates are plain text with `{name}` placeholders (`{{` is a brace); the
names are those of `PLACEHOLDERS`, and no attribute, index or format can be asked of them.
"""

import re
import shutil
import string
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from rolltape.errors import ConfigError

PLACEHOLDERS = frozenset(
    {
        "prompt", "model", "rollout_id", "api_key",
        "base_url", "openai_base_url", "anthropic_base_url", "gemini_base_url",
        "executable", "workspace", "home", "out", "tmp", "config", "context_length",
    }
)  # fmt: skip
"""What a template may name. `base_url` is the one of the profile's own protocol."""

CONFIG_ARGS = "{config_args}"
"""The element of `command` that gives way to the arguments that pass a configuration file, or to nothing."""
CONTEXT_ARGS = "{context_args}"
"""The element of `command` that gives way to the arguments that tell the context length, or to nothing."""
PLACES = ("system", "last_user", "tools", "format")
"""Where a mark may look, besides `header:NAME`."""

CallKind = Literal["agent", "subagent", "compaction", "title", "probe", "judge", "other"]
ReportedEnding = Literal["finished", "budget", "crashed"]


class ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that must be there before the harness starts: `path` leads into the attempt, and is a template.

    So is `text`; `source` is a file beside the profile that is copied as it is, in its place.
    """

    path: str
    text: str = ""
    source: str = ""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the harness takes a configuration file of the user's.

    `args` are the arguments that pass one (templates; `{config}` is its path). `shipped` names the files that come with
    the profile, relative to it.
    """

    args: tuple[str, ...] = ()
    shipped: Mapping[str, str] = {}


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the harness is told how long the model's context is. Left out whole where that is not known.

    Both are templates; `{context_length}` is in tokens.
    """

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the harness itself says of its run: a JSON file, or JSON lines, of which the last counts.

    `file` is a template. `status` are dotted paths into it, the first that is there counts; so is `version`, "" = it
    does not say. `endings` maps an ending to the pattern that the whole status must match: it overrules the exit code.
    A status that none of them matches leaves the exit code to decide.
    """

    file: str
    status: tuple[str, ...] = ()
    version: str = ""
    endings: Mapping[ReportedEnding, str] = {}


class KindMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to tell one kind of call: every pattern must be found in its place.

    A place is `header:NAME` (lower case), `system` (the system texts that the request starts with), `last_user` (the
    user's text that it ends with), `tools` (their names, one a line) or `format` (the reply format, as JSON). What a
    request lacks is the empty text.
    """

    kind: CallKind
    when: Mapping[str, str]


class Calls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to read the harness's calls. Only ever evidence: exact tokens decide what belongs together."""

    user_agent: str = ""
    """Pattern of the user agent by which the harness is known where nothing else names it, "" = none."""
    chain_headers: tuple[str, ...] = ()
    """Request headers that differ between chains (a session or sub-agent id), lower case."""
    retry_header: str = ""
    """The header that counts repeats of one request, "" = none."""
    overflow: str = ""
    """Pattern of the words in a refusal on which it makes room and goes on, "" = a prompt too long ends it."""
    kinds: tuple[KindMark, ...] = ()
    """The first mark that fits decides."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One harness in one version, ready to be launched.

    `protocol` is the wire protocol it speaks (its first word names the base URL). `executable` is looked for on PATH
    and beside the Python that runs Rolltape; `install` says how to get it. `command` and `env` are templates.
    """

    name: str
    version: str
    protocol: str
    executable: str
    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    install: str = ""
    env: Mapping[str, str] = {}
    files: tuple[ConfigFile, ...] = ()
    config: Config | None = None
    context: Context = Context()
    report: Report | None = None
    calls: Calls = Calls()

    def find_executable(self, path: str) -> str:
        """The absolute path of the executable, with `path` in the form of PATH. Raises `ConfigError`."""
        beside = str(Path(sys.executable).parent)
        found = shutil.which(self.executable, path=f"{path}:{beside}")
        if found is None:
            hint = f"install it: {self.install}" if self.install else "install it, or name another profile"
            raise ConfigError(f"harness {self.name!r} needs {self.executable!r}, which is not on PATH", hint=hint)
        return str(Path(found).absolute())

    def find_config(self, spec: str) -> Path:
        """The configuration file that `spec` means: one shipped with the profile, or a path. Raises `ConfigError`."""
        if self.config is None:
            raise ConfigError(f"harness {self.name!r} takes no configuration file")
        path = Path(self.config.shipped.get(spec, spec)).absolute()
        if not path.is_file():
            known = ", ".join(sorted(self.config.shipped)) or "none"
            raise ConfigError(f"there is no configuration {spec!r} for {self.name!r}", hint=f"shipped with it: {known}")
        return path


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with its placeholders replaced. Raises `ConfigError` on a name that `values` lacks."""
    return "".join(text + (_value(name, values) if name is not None else "") for text, name in _pieces(template))


def read_profile(path: Path) -> Profile:
    """The profile in a TOML file, or in `profile.toml` of a folder. Raises `ConfigError`."""
    file = path / "profile.toml" if path.is_dir() else path
    try:
        profile = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Profile)
    except OSError as error:
        raise ConfigError(f"cannot read the harness profile {str(file)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file} is no harness profile: {error}") from error
    profile = _with_sources(profile, file)
    _check(profile, file)
    return _with_absolute_configs(profile, file.parent)


def builtin_profiles() -> Mapping[str, Profile]:
    """The profiles that ship with Rolltape, by name."""
    found = [read_profile(file) for file in sorted((Path(__file__).parent / "profiles").glob("*.toml"))]
    return {profile.name: profile for profile in found}


def find_profile(spec: str, known: Mapping[str, Profile]) -> Profile:
    """The profile that `spec` means: a name in `known`, or a path to a file or folder. Raises `ConfigError`."""
    if spec in known:
        return known[spec]
    if "/" in spec or spec.endswith(".toml") or Path(spec).is_dir():
        return read_profile(Path(spec))
    raise ConfigError(f"no harness profile {spec!r}", hint=f"there are: {', '.join(sorted(known))}; or give a path")


def _pieces(template: str) -> Iterator[tuple[str, str | None]]:
    try:
        for text, name, spec, conversion in string.Formatter().parse(template):
            if spec or conversion:
                raise ConfigError(f"placeholder {{{name}}} takes no format, in {template!r}")
            yield text, name
    except ValueError as error:
        raise ConfigError(f"{error} in {template!r}", hint="write {{ and }} for braces") from error


def _value(name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        raise ConfigError(f"unknown placeholder {{{name}}}", hint=f"there are: {', '.join(sorted(values))}")
    return values[name]


def _check(profile: Profile, file: Path) -> None:
    names = {name: name for name in PLACEHOLDERS}
    try:
        for template in _templates(profile):
            fill(template, names)
        for pattern in _patterns(profile):
            re.compile(pattern)
    except (ConfigError, re.error) as error:
        raise ConfigError(f"{file}: {error}") from error
    for place in (place for mark in profile.calls.kinds for place in mark.when):
        if place not in PLACES and not place.startswith("header:"):
            raise ConfigError(f"{file}: a call kind is told by header:NAME, {', '.join(PLACES)}, not {place!r}")


def _templates(profile: Profile) -> Iterator[str]:
    yield from (part for part in profile.command if part not in (CONFIG_ARGS, CONTEXT_ARGS))
    yield from profile.env.values()
    yield from profile.context.args
    yield from profile.context.env.values()
    for file in profile.files:
        yield from (file.path, file.text)
    if profile.config:
        yield from profile.config.args
    if profile.report:
        yield profile.report.file


def _patterns(profile: Profile) -> Iterator[str]:
    yield profile.calls.user_agent
    yield profile.calls.overflow
    yield from (pattern for mark in profile.calls.kinds for pattern in mark.when.values())
    if profile.report:
        yield from profile.report.endings.values()


def _with_sources(profile: Profile, file: Path) -> Profile:
    return msgspec.structs.replace(profile, files=tuple(_with_source(one, file) for one in profile.files))


def _with_source(wanted: ConfigFile, file: Path) -> ConfigFile:
    """With the text of its source, so that a profile holds everything that an attempt gets."""
    if not wanted.source:
        return wanted
    try:
        text = (file.parent / wanted.source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot read its file {wanted.source!r}: {error}") from error
    return ConfigFile(wanted.path, text.replace("{", "{{").replace("}", "}}"))


def _with_absolute_configs(profile: Profile, folder: Path) -> Profile:
    if profile.config is None:
        return profile
    shipped = {name: str((folder / path).absolute()) for name, path in profile.config.shipped.items()}
    return msgspec.structs.replace(profile, config=msgspec.structs.replace(profile.config, shipped=shipped))
