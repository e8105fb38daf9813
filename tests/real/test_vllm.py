"""The gateway before a real vLLM, driven by the official SDKs: what is recorded is what vLLM computed.

Each call is made once through the gateway and once straight to vLLM with the same seed; nothing else runs meanwhile.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import numpy as np
import openai
import pytest

from rolltape import client
from rolltape.config import read_config
from rolltape.gateway.serve import running
from rolltape.record import TokenEntry
from rolltape.store import CaptureStore

from .vllm_server import CONTEXT, MODEL, PYTHON

pytestmark = pytest.mark.real

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather of a city", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n\\{"name": "get_weather", "arguments": \\{"city": "(Paris|Rome)"\\}\\}\n</tool_call>'
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
ASKED = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Is it warm in Paris? 北京 🙂"}]
THINK_END = 151668
END = 151645


@dataclass
class Lab:
    """A gateway before the server. `seed` is pinned on every call."""

    gateway: str
    server: str
    store: CaptureStore
    rollout: client.Rollout
    http: aiohttp.ClientSession

    async def directly(self, **body: Any) -> dict[str, Any]:
        asked = {"model": "policy", "logprobs": True, "return_token_ids": True, **body}
        return await self.post("/v1/chat/completions", asked)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.http.post(self.server + path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    async def rendered(self, messages: list[Any], **fields: Any) -> list[int]:
        tokens: list[int] = (await self.post("/tokenize", {"messages": messages, **fields}))["tokens"]
        return tokens

    async def entries(self) -> list[TokenEntry]:
        held = await self.store.read(self.rollout.id, texts=True)
        return sorted(held.entries, key=lambda entry: entry.step_index or 0) if held else []

    async def last(self) -> TokenEntry:
        entry = (await self.entries())[-1]
        assert entry.faults == ()
        assert entry.outcome == "completed"
        assert len(entry.generation_token_ids) == len(entry.generation_log_probs) > 0
        return entry


@pytest.fixture
async def lab(vllm: str, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Lab]]]:
    """`await lab(**sampling_overrides)`."""
    stack = contextlib.AsyncExitStack()

    async def start(**overrides: Any) -> Lab:
        config = read_config(
            None, engine_kind="vllm", engine_url=vllm, dir=str(tmp_path), port=0, sampling_overrides=overrides
        )
        up = await stack.enter_async_context(running(config))
        connection = await stack.enter_async_context(client.connect(up.url, up.control_token))
        rollout = await stack.enter_async_context(connection.rollout())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        return Lab(up.url, vllm, up.store, rollout, http)

    async with stack:
        yield start
