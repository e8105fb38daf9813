"""Faults for a while, then a count: `python benchmarks/soak.py [--minutes 30] [--json]`.

Two gateways of one directory, in strict mode, serve real HTTP clients. Meanwhile one or the other is killed and started
again, stopped and continued, or may write no further (as on a full disk). A call counts as acknowledged when its client
has read what a harness acts on. At the end every acknowledged call must be in the store, every digest must hold, and
nothing may be stored that no client asked for. Exit status 1 when that is not so.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from rolltape.store import TokenCaptureStore
from rolltape.store.sqlite import verify
from rolltape.store.sqlite.schema import FILE_NAME

GATEWAYS, CLIENTS, CALLS_A_ROLLOUT = 2, 16, 6
PAUSE_SECONDS = 0.1
FAULTS = ("kill", "pause", "full", "calm")
SERVE = (str(Path(sys.executable).with_name("rolltape")), "serve")


class GatewayProcess:
    """One gateway process after another, on ports of their own. `url` None = none is up."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self.url: str | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *SERVE, str(self._config), "--json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        self.url = json.loads(await self.process.stdout.readline())["url"]

    async def end(self, number: signal.Signals) -> None:
        self.url = None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        await self.process.wait()

    async def kill(self, dice: random.Random) -> None:
        await self.end(signal.SIGKILL)
        await self.start()

    async def pause(self, dice: random.Random) -> None:
        self.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(dice.uniform(0.2, 3))
        self.process.send_signal(signal.SIGCONT)

    async def full(self, dice: random.Random) -> None:
        """No file of this process may grow beyond some kilobytes; sometimes it is killed in that state."""
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (dice.choice((0, 4_096, 50_000)), hard))
        await asyncio.sleep(dice.uniform(0.2, 3))
        if dice.random() < 0.25:
            await self.kill(dice)
        else:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (hard, hard))

    async def calm(self, dice: random.Random) -> None:
        await asyncio.sleep(dice.uniform(0.2, 2))


class Told:
    """What the clients saw: acknowledged (rollout, call), the rollouts they called, and how the calls went."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[str, str]] = []
        self.asked: set[str] = set()
        self.went: Counter[str] = Counter()


async def client(name: str, gateways: list[GatewayProcess], told: Told, until: float) -> None:
    """Rollouts of growing conversations, each call at whichever gateway is up."""
    dice = random.Random(name)
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        number = 0
        while time.monotonic() < until:
            rollout, number = f"{name}-{number}", number + 1
            messages: list[dict[str, str]] = [{"role": "user", "content": f"task {name} {number}"}]
            for _ in range(CALLS_A_ROLLOUT):
                await asyncio.sleep(PAUSE_SECONDS * dice.random() * 2)
                url = dice.choice(gateways).url
                if url is None:
                    continue
                told.asked.add(rollout)
                try:
                    text = await call(http, url, rollout, messages, told, stream=dice.random() < 0.5)
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    told.went[type(error).__name__] += 1
                    continue
                if text is not None:
                    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "and then?"}]


async def call(
    http: aiohttp.ClientSession, url: str, rollout: str, messages: list[dict[str, str]], told: Told, *, stream: bool
) -> str | None:
    """The reply's text; None where the gateway refused."""
    body: dict[str, Any] = {"model": "scripted", "messages": messages, "stream": stream}
    async with http.post(f"{url}/rollout/{rollout}/v1/chat/completions", json=body) as reply:
        if reply.status != 200:
            told.went[str(reply.status)] += 1
            return None
        call_id, text = reply.headers["x-request-id"], ""
        if not stream:
            text = (await reply.json())["choices"][0]["message"]["content"] or ""
            acted = True
        else:
            acted = False
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:]).get("choices", ()):
                        text += choice["delta"].get("content") or ""
                        if choice.get("finish_reason") and not acted:
                            acted = True
                            told.acknowledged.append((rollout, call_id))
        if acted and not stream:
            told.acknowledged.append((rollout, call_id))
        told.went["acknowledged" if acted else "broken off"] += 1
        return text


async def trouble(gateways: list[GatewayProcess], until: float, faults: Counter[str]) -> None:
    """One fault after another, each kind as often as the others."""
    dice = random.Random(11)
    for fault in itertools.cycle(FAULTS):
        await asyncio.sleep(dice.uniform(0.5, 3))
        if time.monotonic() >= until:
            return
        faults[fault] += 1
        await getattr(dice.choice(gateways), fault)(dice)


async def count(folder: Path, told: Told) -> dict[str, Any]:
    """What is missing, and what is there that nobody asked for."""
    held: dict[str, set[str]] = {}
    n_entries = n_incomplete = 0
    async with TokenCaptureStore(folder, settle_seconds=0) as store:
        for state in await store.rollouts():
            snapshot = await store.read(state.rollout_id)
            assert snapshot is not None
            held[state.rollout_id] = {entry.model_call_id for entry in snapshot.entries}
            n_entries += len(snapshot.entries)
            n_incomplete += snapshot.incomplete
    missing = [(rollout, call) for rollout, call in told.acknowledged if call not in held.get(rollout, ())]
    report = verify(folder)
    return {
        "acknowledged": len(told.acknowledged),
        "missing": missing[:20],
        "n_missing": len(missing),
        "unasked": sorted(set(held) - told.asked)[:20],
        "stored_calls": n_entries,
        "rollouts": len(held),
        "incomplete_rollouts": n_incomplete,
        "problems": list(report.problems[:20]),
        "store_bytes": (folder / FILE_NAME).stat().st_size,
    }


async def soak(folder: Path, minutes: float) -> dict[str, Any]:
    config = folder / "soak.yaml"
    config.write_text(
        f"engine: {{kind: scripted}}\ndir: {folder / 'store'}\nport: 0\nstrict: true\nlimits: {{durable_seconds: 5}}\n"
    )
    gateways = [GatewayProcess(config) for _ in range(GATEWAYS)]
    told, faults = Told(), Counter[str]()
    for gateway in gateways:
        await gateway.start()
    until = time.monotonic() + minutes * 60
    try:
        await asyncio.gather(
            trouble(gateways, until, faults), *(client(f"c{n}", gateways, told, until) for n in range(CLIENTS))
        )
    finally:
        for gateway in gateways:
            await gateway.end(signal.SIGTERM)
    result = await count(folder / "store", told)
    result |= {"minutes": minutes, "faults": dict(faults), "calls": dict(told.went)}
    result["held"] = bool(told.acknowledged) and not (result["n_missing"] or result["unasked"] or result["problems"])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--dir", help="soak this disk (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        result = asyncio.run(soak(Path(folder), options.minutes))
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:22}{value}")
    sys.stdout.flush()
    sys.exit(0 if result["held"] else 1)


if __name__ == "__main__":
    main()
