"""Rolltape: train on the agent you ship.

`rolltape.client` is there without an import of its own; everything else is imported by its name.
"""

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    if name == "client":  # not at import: the command line has no use for an HTTP client
        return importlib.import_module("rolltape.client")
    raise AttributeError(f"module 'rolltape' has no attribute {name!r}")
