"""These tests import torch when they are read: without it they fail where they are asked for, and are left unread where
only others are."""

from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.markexpr == "not real" and find_spec("torch") is None else None
