"""Many rollouts at once: nothing is lost and nothing is crossed."""

import asyncio
import json

import aiohttp

from rolltape.rebuild import rebuild
from rolltape.testing.scripted import ScriptedEngine, Step, encode

ROLLOUTS, CALLS = 64, 20


def echo(request, number):
    """Answers with the last thing that the user said, so that a crossed reply shows."""
    return Step(text="re " + request.messages[-1].text())


async def _stream(lab, rollout: str, messages: list[dict]) -> tuple[str, str]:
    body = {"model": "scripted", "messages": messages, "stream": True}
    text, reply_id = [], ""
    async with lab.http.post(lab.chat_url(rollout), json=body) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                reply_id = chunk["id"]
                text += [c["delta"].get("content") or "" for c in chunk["choices"]]
    return reply_id, "".join(text)


async def _rollout(lab, rollout: str) -> list[str]:
    messages, ids = [], []
    for turn in range(CALLS):
        messages.append({"role": "user", "content": f"{rollout} turn {turn}"})
        reply_id, text = await _stream(lab, rollout, messages)
        assert text == f"re {rollout} turn {turn}"
        messages.append({"role": "assistant", "content": text})
        ids.append(reply_id)
    return ids


async def test_64_streaming_rollouts_of_20_calls_keep_apart(gateway):
    async with gateway(engine=ScriptedEngine(script=echo, chunk=8)) as lab:
        lab.http._connector._limit = ROLLOUTS  # type: ignore[attr-defined]
        names = [f"r{i}" for i in range(ROLLOUTS)]
        seen = await asyncio.gather(*(_rollout(lab, name) for name in names))
        for name, ids in zip(names, seen, strict=True):
            snapshot = await lab.store.freeze(name)
            assert not snapshot.incomplete
            assert {e.response_id for e in snapshot.entries} == set(ids)
            built = rebuild(snapshot, delivery="forest")
            (row,) = built.rows
            assert row.loss_tokens == sum(len(e.generation_token_ids) for e in snapshot.entries)
            said = [encode(f"re {name} turn {t}") for t in range(CALLS)]
            spans = [row.token_ids[s.start : s.end - 1].tolist() for s in row.spans]
            assert spans == said


async def test_500_streams_at_once_all_end_well(gateway):
    async with (
        gateway(engine=ScriptedEngine(script=echo, delay=0.02)) as lab,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        lab.http, own = http, lab.http
        try:
            ask = [[{"role": "user", "content": f"number {i}"}] for i in range(500)]
            replies = await asyncio.gather(*(_stream(lab, f"w{i % 50}", m) for i, m in enumerate(ask)))
        finally:
            lab.http = own
        assert [text for _, text in replies] == [f"re number {i}" for i in range(500)]
        assert sum(s.n_entries for s in await lab.store.rollouts()) == 500
