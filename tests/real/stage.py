"""One rollout of a real harness on the scripted engine, and what must hold for every one of them.

The engine's log-probs are a function of id and position, so a row proves itself: every sampled token stands where it
was sampled, with the log-prob it was sampled with.
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from rolltape.chat import ChatRequest
from rolltape.cli.desk import ClientDesk
from rolltape.client import connect
from rolltape.config import ServeConfig
from rolltape.gateway.serve import running
from rolltape.harness import builtin_profiles
from rolltape.harness.sandbox import sandbox_for
from rolltape.rebuild import rebuild
from rolltape.record import Row, TokenCaptureSnapshot, TokenEntry
from rolltape.rollouts import Address, Plan, Task, run_rollouts
from rolltape.testing.scripted import ScriptedEngine, Step, log_prob

from .relay import Cut, Cuts, relay

Script = Callable[[ChatRequest, int], Step]


def installed_version(harness: str) -> str:
    """What the program of the profile says its version is."""
    program = builtin_profiles()[harness].find_executable(os.environ["PATH"])
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return said.stdout + said.stderr


def turns(request: ChatRequest) -> int:
    return sum(message.role == "assistant" for message in request.messages)


def said(request: ChatRequest) -> str:
    """Everything that the user's messages say."""
    return "\n".join(message.text() for message in request.messages if message.role == "user")


class RelayedDesk(ClientDesk):
    """The same desk, its model endpoints behind a relay."""

    def __init__(self, connection: Any, port: int) -> None:
        super().__init__(connection)
        self._port = port

    async def create(self, rollout_id: str, *, labels: Mapping[str, Any], budget: Mapping[str, Any]) -> Address:
        made = await super().create(rollout_id, labels=labels, budget=budget)
        urls = {
            name: urlsplit(url)._replace(netloc=f"127.0.0.1:{self._port}").geturl()
            for name, url in made.base_urls.items()
        }
        return Address(base_urls=urls, api_key=made.api_key)


@dataclass(frozen=True)
class Played:
    """What a rollout left: its result row, its record, its engine and its folder."""

    row: dict[str, Any]
    held: TokenCaptureSnapshot
    engine: ScriptedEngine
    folder: Path

    @property
    def workspace(self) -> Path:
        return self.folder / "data" / "workspaces" / "t-0" / "workspace"

    @property
    def kinds(self) -> Counter[str | None]:
        return Counter(entry.kind for entry in self.held.entries)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(str(entry.outcome) for entry in self.held.entries)

    @property
    def metrics(self) -> dict[str, Any]:
        return self.row["_ng_token_capture"]  # type: ignore[no-any-return]

    @property
    def rows(self) -> list[Row]:
        return list(rebuild(self.held, delivery="forest").rows)

    @property
    def completed(self) -> list[TokenEntry]:
        return [entry for entry in self.held.entries if entry.outcome == "completed"]


async def play(
    folder: Path,
    harness: str,
    script: Script,
    *,
    prompt: str = "Write hello into out.txt.",
    check: str = "grep -qx hello out.txt",
    cut: Callable[[int], Cuts] = lambda number: Cut.NEVER,
    env: Mapping[str, str] | None = None,
    context_length: int = 1_000_000,
    budget: Mapping[str, Any] | None = None,
    model: str = "scripted",
) -> Played:
    """Run `harness` once, in a sandbox. `cut` cuts the connection of the n-th call; `env` goes on the profile's."""
    profile = builtin_profiles()[harness]
    profile = msgspec.structs.replace(profile, env={**profile.env, **(env or {})})
    engine = ScriptedEngine(script=script, context_length=context_length)
    async with AsyncExitStack() as stack:
        config = ServeConfig(dir=str(folder / "data"), port=0, auth="keys", model_aliases=("*",))
        gateway = await stack.enter_async_context(running(config, engine=engine))
        connection = await stack.enter_async_context(connect(gateway.url, gateway.control_token))
        port = await stack.enter_async_context(relay(urlsplit(gateway.url).port or 0, cut))
        program = profile.find_executable(os.environ.get("PATH", os.defpath))
        plan = Plan(
            sandbox=await sandbox_for("required", folder / "data", (folder / "out.jsonl",), (program,)),
            tasks=[Task("t", prompt, check=check)],
            profile=profile,
            model=model,
            out=folder / "out.jsonl",
            directory=folder / "data",
            time_limit=120.0,
            context_length=context_length,
            budget=budget or {},
        )
        await run_rollouts(plan, RelayedDesk(connection, port), gateway.store)
        held = await gateway.store.read("t-0")
    assert held is not None
    return Played(json.loads((folder / "out.jsonl").read_text()), held, engine, folder)


def check_every_token(played: Played) -> None:
    """Every call is recorded once, as it ended; every row's tokens and log-probs are those that were sampled."""
    engine, entries = played.engine, {entry.model_call_id: entry for entry in played.held.entries}
    assert len(entries) == len(played.held.entries) == engine.started, "a call is lost or doubled"
    outcomes = played.outcomes
    assert (outcomes["completed"], outcomes["cancelled"]) == (engine.finished, engine.aborted)
    assert outcomes["failed"] + outcomes["refused"] == engine.failed
    owned: Counter[tuple[str, int]] = Counter()
    for row in played.rows:
        for span in row.spans:
            entry = entries[span.model_call_id]
            ids = row.token_ids[span.start : span.end].tolist()
            assert ids == entry.generation_token_ids.tolist()
            assert row.token_ids[: span.start].tolist() == entry.prompt_token_ids.tolist()
            if span.owned:
                wanted = [log_prob(token, span.start + at) for at, token in enumerate(ids)]
                assert row.log_probs[span.start : span.end].tolist() == pytest.approx(wanted, abs=0)
                owned.update((span.model_call_id, at) for at in range(len(ids)))
        assert row.loss_tokens == sum(span.end - span.start for span in row.spans if span.owned)
    assert set(owned.values()) <= {1}, "a token is trained twice"
    assert {call for call, _ in owned} <= {entry.model_call_id for entry in played.completed}
    assert not played.row["mask_sample"], played.metrics


def untrained(played: Played) -> list[TokenEntry]:
    """Completed calls that no row trains."""
    owned = {span.model_call_id for row in played.rows for span in row.spans if span.owned}
    return [entry for entry in played.completed if entry.model_call_id not in owned]
