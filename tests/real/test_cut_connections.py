"""mini-swe-agent over a line that breaks: every sampled token is in the store once, and the rows are right."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rolltape.chat import ChatRequest
from rolltape.cli.desk import ClientDesk
from rolltape.client import connect
from rolltape.config import ServeConfig
from rolltape.gateway.serve import running
from rolltape.harness import builtin_profiles
from rolltape.rebuild import rebuild
from rolltape.rollouts import Address, Plan, Task, run_rollouts
from rolltape.testing.scripted import ScriptedEngine, Step, encode, log_prob

from .relay import Cut, relay

pytestmark = pytest.mark.real
COMMANDS = ("echo hello > out.txt", "cat out.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


def script(request: ChatRequest, number: int) -> Step:
    """Three commands; each *sampling* differs, so that attempts at one turn can be told apart."""
    turn = sum(message.role == "assistant" for message in request.messages)
    call = ("bash", json.dumps({"command": COMMANDS[min(turn, 2)]}))
    return Step(text=f"sample {number}", tool_calls=(call,), delay=0.02)


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


@pytest.mark.parametrize("cut", [Cut.BEFORE_REPLY, Cut.INSTEAD_OF_REPLY, Cut.WITHIN_REPLY])
async def test_a_connection_cut_at_the_second_turn_loses_and_doubles_nothing(tmp_path: Path, cut: Cut) -> None:
    engine = ScriptedEngine(script=script)
    config = ServeConfig(dir=str(tmp_path / "data"), port=0, auth="keys")
    async with (
        running(config, engine=engine) as gateway,
        connect(gateway.url, gateway.control_token) as connection,
        relay(urlsplit(gateway.url).port or 0, lambda number: cut if number == 1 else Cut.NEVER) as port,
    ):
        plan = Plan(
            tasks=[Task("t", "say hello", check="grep -qx hello out.txt")],
            profile=builtin_profiles()["mini-swe-agent"],
            model="scripted",
            out=tmp_path / "out.jsonl",
            directory=tmp_path / "data",
            time_limit=200.0,
        )
        await run_rollouts(plan, RelayedDesk(connection, port), gateway.store)
        held = await gateway.store.read("t-0")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert (row["ending"], row["reward"], row["mask_sample"]) == ("finished", 1.0, False)

    assert held is not None
    assert len(held.entries) == engine.started == 4
    assert len({e.model_call_id for e in held.entries}) == 4
    lost = [e for e in held.entries if e.outcome == "cancelled"]
    assert len(lost) == (cut is Cut.BEFORE_REPLY)

    built = rebuild(held, delivery="forest")
    sampled = {
        (e.model_call_id, i)
        for e in held.entries
        if e.outcome == "completed"
        for i in range(len(e.generation_token_ids))
    }
    owned = [(s.model_call_id, i) for r in built.rows for s in r.spans if s.owned for i in range(s.end - s.start)]
    assert len(owned) == len(set(owned)), "a token is trained at most once"
    assert set(owned) <= sampled
    chain = max(built.rows, key=lambda r: len(r.spans))
    assert len(chain.spans) == 3
    for one in built.rows:
        for span in one.spans:
            ids = one.token_ids[span.start : span.end].tolist()
            (entry,) = [e for e in held.entries if e.model_call_id == span.model_call_id]
            assert ids == entry.generation_token_ids.tolist()
            assert ids[: len("sample ")] == encode("sample ")
            if span.owned:
                wanted = [log_prob(i, span.start + k) for k, i in enumerate(ids)]
                assert one.log_probs[span.start : span.end].tolist() == pytest.approx(wanted)
