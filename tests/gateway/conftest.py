"""A real gateway on a free port, over the scripted engine and a real store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from rolltape import client
from rolltape.config import read_config
from rolltape.gateway.serve import running
from rolltape.store import CaptureStore
from rolltape.testing.scripted import ScriptedEngine

CHAT = "/v1/chat/completions"


@dataclass
class Lab:
    """A running gateway and what a test needs of it."""

    url: str
    token: str
    store: CaptureStore
    engine: ScriptedEngine
    http: aiohttp.ClientSession

    def chat_url(self, rollout: str = "R1") -> str:
        return f"{self.url}/rollout/{rollout}{CHAT}"

    async def ask(self, rollout: str | None = "R1", headers: dict[str, str] | None = None, **fields: Any):
        """POST a chat request: (status, body)."""
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], **fields}
        url = self.chat_url(rollout) if rollout else self.url + CHAT
        async with self.http.post(url, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def entries(self, rollout: str = "R1"):
        held = await self.store.read(rollout, texts=True)
        return sorted(held.entries, key=lambda e: e.step_index) if held else []

    def control(self) -> client.Connection:
        return client.connect(self.url, self.token)


@pytest.fixture
async def gateway(tmp_path):
    """`async with gateway(script=..., **config) as lab`."""

    @contextlib.asynccontextmanager
    async def start(engine: ScriptedEngine | None = None, script=None, **flags: Any) -> AsyncIterator[Lab]:
        engine = engine or ScriptedEngine(script=script)
        config = read_config(None, dir=str(tmp_path / "store"), port=0, **flags)
        async with running(config, engine=engine) as up, aiohttp.ClientSession() as http:
            yield Lab(up.url, up.control_token, up.store, engine, http)

    return start


async def until(condition, seconds: float = 5.0) -> None:
    """Wait until `condition()` holds; fails the test if it does not in time."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    assert condition()
