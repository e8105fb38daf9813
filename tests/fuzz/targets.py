"""What bytes may do: a decoder gives a request or a refusal in its dialect, a reader events or what is wrong.

Each target takes bytes and raises nothing. Seeds are bodies that harnesses sent and answers that engines gave.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from engines.sglang import recorded as sglang
from engines.tape import machine
from engines.vllm.test_reading import reader as vllm_reader
from rolltape import registry
from rolltape.capture import ModelCall, request_digest
from rolltape.chat import EngineEvent, Finished
from rolltape.engines.http import lenient_json
from rolltape.engines.llamacpp.reading import CompletionReader, StopText, Vocabulary
from rolltape.engines.llamacpp.tools import ToolCallParser
from rolltape.errors import RequestError
from rolltape.media import media_parts
from rolltape.record import Outcome
from rolltape.sse import SseParser
from rolltape.wire import WireProtocol

DATA = Path(__file__).parents[1] / "data"
TRAFFIC = {
    "anthropic_messages": ("claude-code", "mini-swe-agent-anthropic"),
    "gemini": ("gemini-cli",),
    "openai_chat": ("mini-swe-agent", "opencode", "qwen-code"),
    "openai_completions": (),
    "openai_responses": ("codex", "mini-swe-agent-responses"),
}
MOST_SEEDS = 24
PROTOCOLS: dict[str, WireProtocol] = {protocol.name: protocol for protocol in registry.protocols()}
SPELLINGS = json.loads((DATA / "llamacpp" / "vocabulary.json").read_text())
VOCABULARY = Vocabulary({int(i): bytes(piece) for i, piece in SPELLINGS["pieces"].items()}, SPELLINGS["control"])


def bodies(protocol: str) -> list[bytes]:
    """Recorded bodies, the short ones first."""
    found = [b'{"model": "m", "prompt": ["Once"], "max_tokens": 9, "stop": ["x"]}'] if not TRAFFIC[protocol] else []
    for harness in TRAFFIC[protocol]:
        for line in (DATA / "traffic" / f"{harness}.jsonl").read_bytes().splitlines():
            found.append(msgspec.json.encode(msgspec.json.decode(line)["body"]))
    return sorted(found, key=len)[:MOST_SEEDS]


def decode(protocol: str, body: bytes) -> None:
    """`body` on every route of `protocol`. What it gives can be sent on, recorded and answered."""
    wire = PROTOCOLS[protocol]
    for path in (*wire.paths, *wire.counting_paths):
        route = path.replace("{model}", "models/m%2F1")
        try:
            request = wire.decode(route, body, {})
        except RequestError as error:
            _refused(wire, error)
            continue
        msgspec.json.encode(request)
        request_digest(body)
        list(media_parts(request))
        encoder = wire.encoder(request, reply_id="r", created=0)
        closing = encoder.encode(Finished("stop", 0, None)) if encoder.open() is not None else ()
        assert all(isinstance(frame.data, bytes) for frame in closing)


def _refused(wire: WireProtocol, error: RequestError) -> None:
    assert 400 <= error.status < 500
    json.loads(wire.encode_error(error).body)


def answers(reader: str) -> list[bytes]:
    """Recorded answers that `reader` reads."""
    if reader == "vllm":
        return [path.read_bytes() for path in sorted((DATA / "vllm").glob("*.sse"))]
    if reader == "vllm_whole":
        return [(DATA / "vllm" / "whole.json").read_bytes()]
    if reader == "sglang_chat":
        return [sglang.answer(name) for name in ("chat_stream_sglext_hdr", "chat_stream_return_token_ids")]
    if reader == "sglang_chat_whole":
        return [sglang.answer(name) for name in ("chat_ids", "chat_ids_meta", "chat_sglext")]
    if reader == "sglang_generate":
        return [sglang.answer("generate_stream")]
    if reader == "sglang_generate_whole":
        return [sglang.answer(name) for name in ("generate", "generate_after_update", "chat_stop", "raw_T0.5")]
    return [_streamed(path) for path in sorted((DATA / "llamacpp").glob("*.jsonl"))]


def _streamed(path: Path) -> bytes:
    chunks = path.read_bytes().splitlines()[1:]
    return b"".join(b"data: " + chunk + b"\n\n" for chunk in chunks)


READERS: dict[str, Callable[[], Any]] = {
    "vllm": vllm_reader,
    "vllm_whole": lambda: vllm_reader(streamed=False),
    "sglang_chat": lambda: sglang.chat_reader([1, 2]),
    "sglang_chat_whole": lambda: sglang.chat_reader([1, 2], streamed=False),
    "sglang_generate": lambda: sglang.generate_reader([1, 2]),
    "sglang_generate_whole": lambda: sglang.generate_reader([1, 2], streamed=False),
    "llamacpp": lambda: _LlamaCpp(),
}


class _LlamaCpp:
    """Its reader takes chunks that are objects already."""

    def __init__(self) -> None:
        self._sse = SseParser()
        self._reader = CompletionReader(VOCABULARY, 1000, StopText(("stop",)), ToolCallParser())

    def feed(self, data: bytes) -> Iterator[EngineEvent]:
        for event in self._sse.feed(data):
            try:
                chunk = lenient_json(event.data)
            except ValueError:
                return
            if isinstance(chunk, dict) and not self._reader.done:
                yield from self._reader.feed(chunk)

    def close(self) -> Iterator[EngineEvent]:
        return iter(())


def read(reader: str, data: bytes) -> None:
    """`data` in two reads. Whatever comes makes an entry, marked or not, and can be encoded in every protocol."""
    answer, call = READERS[reader](), machine()
    encoders = [p.encoder(call.identity.request, reply_id="r", created=0) for p in PROTOCOLS.values()]
    try:
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            for event in answer.feed(part):
                _take(call, encoders, event)
        for event in answer.close():
            _take(call, encoders, event)
    except RequestError as error:
        call.ended(Outcome.FAILED, 2.0, error.message, policy_version_end=None).to_json()
        return
    if call.finished is not None:
        msgspec.json.encode(call.completed(2.0, policy_version_end=None).to_json())


def _take(call: ModelCall, encoders: list[Any], event: EngineEvent) -> None:
    call.feed(event, 1.0)
    for encoder in encoders:
        encoder.encode(event)
