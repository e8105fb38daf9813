"""Rollouts captured through a real gateway from the embedded engine, recomputed by transformers.

The engine multiplies 4-bit weights with activations rounded to 8 bits; transformers has the same weights as floats. So
the two agree closely and not exactly, and the bounds are those of that arithmetic, with room.
"""

from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from rolltape.agreement import Distribution, TransformersLogProbs, compare_entries
from rolltape.config import read_config
from rolltape.gateway.serve import running
from rolltape.record import LogProbKind, TokenEntry

pytestmark = pytest.mark.real

TALKS: list[list[tuple[str, str]]] = [
    [("user", "Tell me about the sea.")],
    [("system", "Be terse."), ("user", "What is 12345 + 67890?")],
    [("user", "Write a Python function that adds two numbers.")],
    [("user", "日本語 🙂 é"), ("assistant", "Yes?"), ("user", "Name three colours.")],
    [("system", "You are a pirate."), ("user", "```bash\nls -la\n```\nWhat does this do?")],
    [("user", "Continue: once upon a time in 1984,")],
]
HEATS = (1.0, 0.7)


async def captured(folder: Path) -> list[TokenEntry]:
    """One rollout of every talk at every temperature, in this order."""
    options = {"context": 1024, "slots": 1, "seed": 5}
    config = read_config(None, engine_kind="llamacpp", engine_options=options, dir=str(folder), port=0)
    async with running(config) as up, aiohttp.ClientSession() as http:
        for number, talk in enumerate(TALKS):
            for heat in HEATS:
                await ask(http, f"{up.url}/rollout/r{number}/v1/chat/completions", talk, heat)
        held = [await up.store.read(f"r{number}") for number in range(len(TALKS))]
    entries = [entry for snapshot in held if snapshot for entry in snapshot.entries]
    return sorted(entries, key=lambda entry: (entry.rollout_id, entry.step_index or 0))


async def ask(http: aiohttp.ClientSession, url: str, talk: list[tuple[str, str]], heat: float) -> None:
    messages = [{"role": role, "content": content} for role, content in talk]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 48, "temperature": heat}
    async with http.post(url, json=body) as response:
        assert response.status == 200, await response.text()


async def test_recorded_log_probs_are_those_of_the_converted_model(smollm2: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    entries = await captured(tmp_path)
    source = TransformersLogProbs(smollm2)
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)

    for entry, talk in zip(entries, [talk for talk in TALKS for _ in HEATS], strict=True):
        messages = [{"role": role, "content": content} for role, content in talk]
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert entry.prompt_token_ids.tolist() == tokenizer.encode(rendered, add_special_tokens=False)
    (of, found), *others = compare_entries(entries, source).items()
    print(found)
    assert not others
    assert of == Distribution(LogProbKind.RAW)
    assert found.n_tokens > 300
    assert found.n_unknown < 0.1 * found.n_tokens
    assert found.holds(pearson=0.99, max_abs_diff=1.0)
    assert found.k3 is not None
    assert found.k3 < 0.01

    (warm,) = compare_entries([as_if_scaled(entry) for entry in entries[1::2]], source).values()
    assert not warm.holds(pearson=0.99, max_abs_diff=1.0), "raw log-probs passed for temperature-scaled ones"


def as_if_scaled(entry: TokenEntry) -> TokenEntry:
    """The wrong kind on the right numbers."""
    sampling = {"temperature": float(np.float64(HEATS[1]))}
    return entry.with_(log_prob_kind=str(LogProbKind.TEMPERATURE_SCALED), sampling_applied=sampling)
