"""The packages of the `torch` extra, imported when they are first needed: they take seconds and gigabytes."""

import importlib
from types import ModuleType

from rolltape.errors import ConfigError


def needed(name: str) -> ModuleType:
    """The module `name`. Raises `ConfigError` when it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"Recomputing log-probs needs the package {name}.", hint="pip install 'rolltape[torch]'"
        ) from error
