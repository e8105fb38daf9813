"""Images through each protocol: an engine that takes them gets them, and entries and rows name them by hash."""

import base64
import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from rolltape.chat import ChatRequest, Message
from rolltape.media import media_parts, media_references
from rolltape.rebuild import rebuild
from rolltape.testing.scripted import ScriptedEngine, Step
from rolltape.testing.scripted.tokenizer import IMAGE


def png(shade: int) -> bytes:
    """A picture of one grey pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = (1).to_bytes(4, "big") * 2 + bytes((8, 0, 0, 0, 0))
    pixels = zlib.compress(bytes((0, shade)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


DARK = png(16)
DATA = base64.b64encode(DARK).decode()
URL = f"data:image/png;base64,{DATA}"
TEXT = "What is it?"


def chat(image: bool) -> dict[str, Any]:
    parts = [{"type": "text", "text": TEXT}, *([{"type": "image_url", "image_url": {"url": URL}}] if image else [])]
    return {"messages": [{"role": "user", "content": parts}]}


def messages(image: bool) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    parts = [{"type": "text", "text": TEXT}, *([{"type": "image", "source": source}] if image else [])]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 50}


def responses(image: bool) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": TEXT}, *([{"type": "input_image", "image_url": URL}] if image else [])]
    return {"input": [{"role": "user", "content": parts}]}


def gemini(image: bool) -> dict[str, Any]:
    data = {"inlineData": {"mimeType": "image/png", "data": DATA}}
    return {"contents": [{"role": "user", "parts": [{"text": TEXT}, *([data] if image else [])]}]}


WIRES: dict[str, tuple[str, Callable[[bool], dict[str, Any]]]] = {
    "openai_chat": ("/v1/chat/completions", chat),
    "anthropic_messages": ("/v1/messages", messages),
    "openai_responses": ("/v1/responses", responses),
    "gemini": ("/v1beta/models/scripted:generateContent", gemini),
}
REFERENCE = {
    "type": "image_url", "message": 0, "part": 1, "sha256": hashlib.sha256(DARK).hexdigest(),
    "mime_type": "image/png", "bytes": len(DARK),
}  # fmt: skip


async def post(lab, wire: str, image: bool = True, rollout: str = "R1") -> tuple[int, dict[str, Any]]:
    path, body = WIRES[wire]
    async with lab.http.post(
        f"{lab.url}/rollout/{rollout}{path}", json={"model": "scripted"} | body(image)
    ) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("wire", WIRES)
async def test_an_image_reaches_the_engine_and_entry_and_row_name_it(gateway, wire):
    engine = ScriptedEngine(script=[Step(text="dark")], images=True)
    async with gateway(engine=engine) as lab:
        assert (await post(lab, wire))[0] == 200
        (entry,) = await lab.entries()
        built = rebuild(await lab.store.freeze("R1"))
    (part,) = media_parts(engine.seen[0][0])
    assert part.part["image_url"]["url"] == URL
    assert entry.media == (REFERENCE,)
    assert entry.prompt_token_ids.tolist().count(IMAGE) == 4
    assert URL in entry.request_text.decode()
    assert [dict(one) for one in built.rows[0].media] == [REFERENCE]
    assert built.rows[0].to_json()["media"] == [REFERENCE]


@pytest.mark.parametrize("wire", WIRES)
async def test_an_engine_that_takes_text_only_refuses_in_the_caller_s_words(gateway, wire):
    async with gateway() as lab:
        status, body = await post(lab, wire)
        assert status == 400
        assert "takes text only" in str(body["error"]["message"])
        assert lab.engine.started == 0
        (entry,) = await lab.entries()
        assert (entry.outcome, entry.media) == ("refused", (REFERENCE,))
        assert (await post(lab, wire, image=False))[0] == 200


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1beta/models/scripted:countTokens"])
async def test_a_count_of_what_the_engine_cannot_see_is_refused(gateway, path):
    body = gemini(True) if "v1beta" in path else messages(True)
    async with (
        gateway() as lab,
        lab.http.post(f"{lab.url}{path}", json={"model": "scripted"} | body) as response,
    ):
        assert response.status == 400


async def test_with_texts_off_the_reference_stays_and_the_bytes_do_not(gateway):
    async with gateway(engine=ScriptedEngine(images=True), texts=False) as lab:
        await post(lab, "openai_chat")
        (entry,) = await lab.entries()
    assert (entry.request_text, entry.media) == (None, (REFERENCE,))


def test_what_is_named_by_an_address_alone_is_referred_to_by_it():
    parts = (
        {"type": "image_url", "image_url": {"url": "https://e.x/a.png"}},
        {"type": "image_url", "image_url": "data:image/png;base64,!"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "mystery"},
    )
    message = Message("user", ({"type": "text", "text": "x"}, *parts))
    told = media_references(ChatRequest(model="m", messages=(message,)))
    assert [one["part"] for one in told] == [1, 2, 3, 4]
    assert told[0] == {"type": "image_url", "message": 0, "part": 1, "url": "https://e.x/a.png"}
    assert (told[1]["bytes"], told[2]["bytes"], told[2]["mime_type"]) == (1, 3, "wav")
    assert told[3] == {"type": "mystery", "message": 0, "part": 4}


async def test_two_images_of_one_size_are_two_conversations_although_their_ids_are_equal(gateway):
    """Placeholders do not say what they stand for: neither is the other's retry, and neither extends the other."""
    engine = ScriptedEngine(script=[Step(text="dark"), Step(text="light"), Step(text="still dark")], images=True)
    other = base64.b64encode(png(240)).decode()
    async with gateway(engine=engine) as lab:
        turns = []
        for data in (DATA, other):
            url = f"data:image/png;base64,{data}"
            turns.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})
            status, _ = await lab.ask(messages=[turns[-1]])
            assert status == 200
        said = [{"role": "assistant", "content": "dark"}, {"role": "user", "content": "sure?"}]
        await lab.ask(messages=[turns[0], *said])
        dark, light, sure = await lab.entries()
        built = rebuild(await lab.store.freeze("R1"))
    assert dark.prompt_token_ids.tolist() == light.prompt_token_ids.tolist()
    assert not built.mask_sample
    assert sorted(row.model_call_ids for row in built.rows) == sorted(
        [(light.model_call_id,), (dark.model_call_id, sure.model_call_id)]
    )
    assert {row.media[0]["sha256"] for row in built.rows} == {
        hashlib.sha256(png(shade)).hexdigest() for shade in (16, 240)
    }
