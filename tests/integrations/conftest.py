"""A store in a temporary directory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rolltape.store import TokenCaptureStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TokenCaptureStore]:
    opened = TokenCaptureStore(tmp_path / "store", settle_seconds=0.05)
    yield opened
    await opened.close()
