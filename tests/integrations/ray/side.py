"""What runs on the other side: agent loops and sources that the actor gets by pickle, and a consumer to be killed."""

import asyncio
import base64
import importlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import ray

from foreign_transport import FolderSource
from rolltape.integrations.ray import Rollouts, Seat
from rolltape.record import TokenCaptureSnapshot
from rolltape.store import TokenCaptureStore, TokenSource

IMAGE = "data:image/png;base64," + base64.b64encode(b"a picture").decode()
SHOWN = {"type": "input_image", "image_url": IMAGE}


async def asks_twice(example: Mapping[str, Any], seat: Seat) -> dict[str, Any]:
    """Two calls, the second one extending the first; tells the model something else than the dataset's prompt."""
    messages = [{"role": "user", "content": f"You are number {seat.rollout_id}. {example['prompt']}"}]
    headers = {"authorization": f"Bearer {seat.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(2):
            body = {"model": seat.model, "messages": messages}
            async with session.post(f"{seat.base_urls['openai']}/chat/completions", json=body) as answer:
                answer.raise_for_status()
                said = (await answer.json())["choices"][0]["message"]
            messages += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "go on"}]
    shown = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "see"}, SHOWN]}
    return {"reward": 0.5, "response": {"output": [{"type": "message", "content": said["content"]}, shown]}}


async def asks_and_fails(example: Mapping[str, Any], seat: Seat) -> dict[str, Any]:
    await asks_twice(example, seat)
    raise OSError("the environment went away")


async def asks_nothing(example: Mapping[str, Any], seat: Seat) -> dict[str, Any]:
    return {"reward": 1.0}


async def hangs(example: Mapping[str, Any], seat: Seat) -> dict[str, Any]:
    await asks_twice(example, seat)
    await asyncio.sleep(600)
    return {}


@dataclass(frozen=True)
class LosesACall:
    """A call of its rollouts is known to be lost: nothing can be trained on them."""

    dir: str

    async def __call__(self, example: Mapping[str, Any], seat: Seat) -> dict[str, Any]:
        result = await asks_twice(example, seat)
        async with TokenCaptureStore(self.dir) as store:
            await store.mark_incomplete(seat.rollout_id, "lost")
        return result


@dataclass(frozen=True)
class NotesItsAddress:
    file: Path

    async def __call__(self, example: Mapping[str, Any], seat: Seat) -> dict[str, Any]:
        self.file.write_text(seat.base_urls["openai"].partition("/rollout")[0].removesuffix("/v1"))
        return await asks_twice(example, seat)


class WatchedSource:
    """A store of the source's own that writes down what it is asked, and whether the gateway still answered then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = TokenCaptureStore(folder / "data")
        self.note(f"made in {os.getpid()} on {ray.get_runtime_context().get_node_id()}")

    def note(self, line: str) -> None:
        with (self.folder / "log").open("a") as file:
            file.write(line + "\n")

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        self.note(f"freeze {rollout_id}")
        return await self.store.freeze(rollout_id)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        self.note(f"drop {rollout_id}")
        return await self.store.drop(rollout_id, snapshot_id=snapshot_id, version=version)

    async def close(self) -> None:
        url = (self.folder / "url").read_text() + "/healthz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            self.note(f"close, gateway {answer.status}")
        await self.store.close()


@dataclass(frozen=True)
class Watched:
    """A factory."""

    folder: Path

    def __call__(self) -> TokenSource:
        return WatchedSource(self.folder)


@dataclass(frozen=True)
class FromFolder:
    """A factory that has to wait for what it makes."""

    folder: Path

    async def __call__(self) -> TokenSource:
        await asyncio.sleep(0)
        return FolderSource(self.folder)


class NoDrop:
    async def freeze(self, rollout_id: str) -> None: ...
    async def close(self) -> None: ...


class Blocking:
    def freeze(self, rollout_id: str) -> None: ...
    def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> None: ...
    async def close(self) -> None: ...


class Unknown:
    """Its package is not installed where it is sent."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("no_such_package",)

    async def __call__(self, example: Mapping[str, Any], seat: Seat) -> dict[str, Any]:
        return {}


def fails() -> TokenSource:
    raise ConnectionError("no such queue")


def nothing() -> None:
    return None


def a_dict() -> dict[str, Any]:
    return {}


def a_class() -> type:
    return WatchedSource


def no_drop() -> NoDrop:
    return NoDrop()


def blocking() -> Blocking:
    return Blocking()


def main() -> None:
    """`side ADDRESS ACTOR N`: take N rollouts of six, tell their ids, and then hold the last one until killed."""
    address, name, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ray.init(address=address, namespace="rolltape", log_to_driver=False)
    rollouts = Rollouts(ray.get_actor(name), [{"id": "t", "prompt": "hi"}], group_size=6)
    for number, arrived in enumerate(rollouts, 1):
        print(arrived.rollout_id, flush=True)
        if number == wanted:
            time.sleep(600)


if __name__ == "__main__":
    main()
