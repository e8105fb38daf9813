"""Recorded answers of an SGLang server as the bytes that it sent, and events as the gateway records them."""

import json
from pathlib import Path
from typing import Any

from rolltape.chat import EngineEvent
from rolltape.engines.sglang.asking import CHAT, NATIVE, Asked
from rolltape.engines.sglang.chat import ChatReader
from rolltape.engines.sglang.generating import GenerateReader
from rolltape.record import LogProbKind
from rolltape.tokens import token_ids

DATA = Path(__file__).parents[2] / "data" / "sglang"


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return found


def response(name: str) -> Any:
    return recording(name)["response"]


def answer(name: str) -> bytes:
    """The body as it was sent."""
    told = response(name)
    if isinstance(told, list):
        return "".join(f"{line}\n\n" for line in told if line).encode()
    return json.dumps(told).encode()


def chunks(name: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in response(name) if line and "[DONE]" not in line]


def stream(*chunks: Any, done: bool = True) -> bytes:
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])]).encode()


def chat_reader(prompt: list[int] | None = None, streamed: bool = True, **applied: Any) -> ChatReader:
    told = None if prompt is None else token_ids(prompt)
    return ChatReader(Asked(CHAT, {}, applied, LogProbKind.TEMPERATURE_SCALED, told), None, streamed)


def generate_reader(prompt: list[int] | None = None, streamed: bool = True, **applied: Any) -> GenerateReader:
    told = None if prompt is None else token_ids(prompt)
    asked = Asked(NATIVE, {"sampling_params": {}}, applied, LogProbKind.TEMPERATURE_SCALED, told)
    return GenerateReader(asked, None, streamed)


def read(reader: ChatReader | GenerateReader, *reads: bytes) -> list[EngineEvent]:
    events = [event for data in reads for event in reader.feed(data)]
    return events + list(reader.close())
