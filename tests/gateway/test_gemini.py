"""Gemini through a real gateway: the official SDK, the store, and the order between them."""

import asyncio
import contextlib

import pytest
from google import genai
from google.genai import errors, types

from rolltape.record import Delivery, Outcome
from rolltape.testing.scripted import Fault, ScriptedEngine, Step, encode

from .conftest import until

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
ASK = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
BASH = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="Bash",
            description="Run.",
            parameters=types.Schema(
                type=types.Type.OBJECT, properties={"command": types.Schema(type=types.Type.STRING)}
            ),
        )
    ]
)
CONFIG = types.GenerateContentConfig(
    tools=[BASH],
    thinking_config=types.ThinkingConfig(include_thoughts=True),
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)
ACT = Step(reasoning="hm", text="look", tool_calls=(("Bash", '{"command": "ls"}'), ("Bash", '{"command": "pwd"}')))


@contextlib.asynccontextmanager
async def sdk(lab, rollout="R1", key="dummy", **options):
    client = genai.Client(
        api_key=key, http_options=types.HttpOptions(base_url=f"{lab.url}/rollout/{rollout}", **options)
    )
    try:
        yield client.aio
    finally:
        await client.aio.aclose()
        client.close()


def url(lab, method="generateContent", rollout="R1", query="", version="v1beta") -> str:
    return f"{lab.url}/rollout/{rollout}/{version}/models/scripted:{method}{query}"


async def say(client, contents, *, stream: bool, config=CONFIG):
    """One call: the parts of the reply, its finish reason, usage and id."""
    if not stream:
        reply = await client.models.generate_content(model="scripted", contents=contents, config=config)
        return reply.candidates[0].content.parts, reply
    parts = []
    async for reply in await client.models.generate_content_stream(model="scripted", contents=contents, config=config):
        parts += reply.candidates[0].content.parts
    return parts, reply


def text_of(parts) -> str:
    return "".join(part.text for part in parts if part.text and not part.thought)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["v1", "v1beta"])
async def test_the_sdk_gets_its_reply_and_the_store_its_exact_ids(gateway, stream, version):
    async with gateway(script=[Step(text="hello there")]) as lab, sdk(lab, api_version=version) as client:
        parts, reply = await say(client, "hi", stream=stream)
        (entry,) = await lab.entries()
    assert text_of(parts) == "hello there"
    assert (reply.response_id, reply.model_version) == (entry.response_id, "scripted")
    assert reply.candidates[0].finish_reason == types.FinishReason.STOP
    assert reply.response_id == f"gen-{entry.model_call_id}"
    assert entry.generation_token_ids.tolist()[:-1] == encode("hello there")
    assert reply.usage_metadata.prompt_token_count == len(entry.prompt_token_ids)
    assert reply.usage_metadata.candidates_token_count == len(entry.generation_token_ids)
    assert (entry.outcome, entry.faults, entry.protocol) == ("completed", (), "gemini")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_turn_extends_the_chain_to_the_token(gateway, stream):
    async with gateway(script=[ACT, Step(text="done")]) as lab, sdk(lab) as client:
        ask = types.Content(role="user", parts=[types.Part(text="hi")])
        parts, _ = await say(client, [ask], stream=stream)
        calls = [part for part in parts if part.function_call]
        results = [
            types.Part.from_function_response(name="Bash", response={"output": f"out {n}"}) for n in range(len(calls))
        ]
        for part, result in zip(calls, results, strict=True):
            result.function_response.id = part.function_call.id
        turn = [types.Content(role="model", parts=parts), types.Content(role="user", parts=results)]
        await say(client, [ask, *turn], stream=stream)
        first, second = await lab.entries()
    assert [part.function_call.args for part in calls] == [{"command": "ls"}, {"command": "pwd"}]
    assert calls[0].thought_signature == f"rolltape.gen-{first.model_call_id}.0".encode()
    assert second.parent_call_id == first.model_call_id
    assert second.prompt_token_ids.tolist()[: first.length] == first.sequence.tolist()


async def test_a_chat_of_the_sdk_is_one_chain(gateway):
    script = [Step(text=f"answer number {n}") for n in range(3)]
    async with gateway(script=script) as lab, sdk(lab) as client:
        chat = client.chats.create(model="scripted")
        for turn in range(3):
            async for _ in await chat.send_message_stream(f"question {turn}"):
                pass
        entries = await lab.entries()
    assert [entry.parent_call_id for entry in entries] == [None, *(entry.model_call_id for entry in entries[:-1])]


@pytest.mark.parametrize("query", ["?alt=sse", ""])
@pytest.mark.parametrize(("step", "held"), [(Step(text="hello there"), b"finishReason"), (ACT, b"functionCall")])
async def test_what_a_harness_acts_on_waits_for_the_durable_entry(gateway, monkeypatch, step, held, query):
    async with gateway(engine=ScriptedEngine(script=[step], chunk=6)) as lab:
        gate, put = asyncio.Event(), lab.store.put

        async def slow_put(entry):
            await gate.wait()
            await put(entry)

        monkeypatch.setattr(lab.store, "put", slow_put)
        async with lab.http.post(url(lab, "streamGenerateContent", query=query), json=ASK) as response:
            seen = b""
            with contextlib.suppress(TimeoutError):
                while True:
                    seen += await asyncio.wait_for(response.content.readany(), 0.3)
            assert b'"text":"' in seen
            assert held not in seen
            gate.set()
            seen += await response.content.read()
    assert held in seen
    assert response.content_type == ("text/event-stream" if query else "application/json")


async def test_counting_adds_no_record_and_agrees_with_the_call(gateway):
    async with gateway() as lab, sdk(lab) as client:
        counted = await client.models.count_tokens(model="scripted", contents="hi")
        assert await lab.store.read("R1") is None
        _, reply = await say(client, "hi", stream=False, config=None)
    assert counted.total_tokens == reply.usage_metadata.prompt_token_count


async def test_the_sdk_finds_the_models(gateway):
    async with gateway(model_aliases=["gemini-2.5-flash"]) as lab, sdk(lab) as client:
        listed = [model.name async for model in await client.models.list()]
        one = await client.models.get(model="gemini-2.5-flash")
        async with lab.http.get(f"{lab.url}/v1beta/models") as response:
            assert len((await response.json())["models"]) == 2
        with pytest.raises(errors.ClientError, match="'nothing' is not served here"):
            await client.models.get(model="nothing")
    assert listed == ["models/scripted", "models/gemini-2.5-flash"]
    assert (one.name, one.input_token_limit) == ("models/gemini-2.5-flash", 131072)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "code", "status", "outcome"),
    [
        (Fault.REFUSE_400, 400, "INVALID_ARGUMENT", Outcome.REFUSED),
        (Fault.UNAVAILABLE, 503, "UNAVAILABLE", Outcome.FAILED),
        (Fault.ERROR_500, 500, "INTERNAL", Outcome.FAILED),
    ],
)
async def test_an_engine_that_fails_before_any_token_gives_a_typed_error(gateway, fault, code, status, outcome, stream):
    retry = types.HttpRetryOptions(attempts=1)
    async with (
        gateway(script=[Step(text="hello", fault=fault)]) as lab,
        sdk(lab, retry_options=retry) as client,
    ):
        with pytest.raises(errors.APIError) as caught:
            await say(client, "hi", stream=stream)
        (entry,) = await lab.entries()
    assert (caught.value.code, caught.value.status, entry.outcome) == (code, status, outcome)


async def test_a_stream_that_breaks_is_an_error_to_the_sdk(gateway):
    step = Step(text="hello there", fault=Fault.DIE_MID_STREAM, after=6)
    async with gateway(script=[step]) as lab, sdk(lab) as client:
        with pytest.raises(errors.ServerError, match="died on purpose"):
            await say(client, "hi", stream=True)
        (entry,) = await lab.entries()
    assert (entry.outcome, entry.generation_token_ids.tolist()) == (Outcome.FAILED, encode("hello there")[:6])


async def test_a_client_that_leaves_never_had_the_end(gateway):
    async with gateway(engine=ScriptedEngine(script=[Step(text="x" * 400)], delay=0.02)) as lab:
        async with lab.http.post(url(lab, "streamGenerateContent", query="?alt=sse"), json=ASK) as response:
            await response.content.readany()
            response.close()
        await until(lambda: lab.engine.aborted == 1)
        for _ in range(250):
            (entry,) = await lab.entries() or [None]
            if entry and entry.delivery != Delivery.UNKNOWN:
                break
            await asyncio.sleep(0.02)
    assert (entry.outcome, entry.delivery) == (Outcome.CANCELLED, Delivery.UNDELIVERED)


async def test_silence_is_filled_with_white_space(gateway):
    limits = {"keep_alive_seconds": 0.05, "first_byte_seconds": 0.05}
    engine = ScriptedEngine(script=[Step(text="late", delay=0.2)], chunk=2)
    async with gateway(engine=engine, limits=limits) as lab, sdk(lab) as client:
        async with lab.http.post(url(lab, "streamGenerateContent", query="?alt=sse"), json=ASK) as response:
            seen = await response.text()
        lab.engine._answer = lambda request, number: Step(text="late", delay=0.2)
        parts, _ = await say(client, "hi", stream=True)
    assert seen.startswith("\n")
    assert text_of(parts) == "late"


async def test_budgets_end_in_the_dialect_s_own_way(gateway):
    async with gateway() as lab, lab.control() as control:
        made = await control.create("R1", {}, {"calls": 1})
        assert made["base_urls"]["gemini"] == f"{lab.url}/rollout/R1"
        async with sdk(lab) as client:
            await say(client, "hi", stream=False)
            with pytest.raises(errors.ClientError, match="over its budget") as caught:
                await say(client, "hi", stream=True)
    assert (caught.value.code, caught.value.status) == (403, "PERMISSION_DENIED")


async def test_a_reply_that_ran_out_of_tokens_says_so(gateway):
    async with gateway(script=[Step(text="x" * 40)]) as lab, sdk(lab) as client:
        _, reply = await say(client, "hi", stream=True, config=types.GenerateContentConfig(max_output_tokens=5))
    assert reply.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert reply.usage_metadata.candidates_token_count == 5


@pytest.mark.parametrize("where", ["header", "query"])
async def test_the_key_names_the_rollout_wherever_google_s_clients_put_it(gateway, where):
    async with gateway(auth="keys") as lab, lab.control() as control:
        made = await control.create("R1", {}, {})
        path = f"{lab.url}/v1beta/models/scripted:generateContent"
        async with lab.http.post(path, json=ASK) as response:
            assert (response.status, (await response.json())["error"]["status"]) == (401, "UNAUTHENTICATED")
        headers = {"x-goog-api-key": made["api_key"]} if where == "header" else {}
        query = {"key": made["api_key"]} if where == "query" else {}
        async with lab.http.post(path, json=ASK, headers=headers, params=query) as response:
            assert response.status == 200
        (entry,) = await lab.entries()
    assert made["api_key"] not in str(dict(entry.headers))


async def test_the_client_of_the_control_api_gives_an_address_that_the_sdk_takes(gateway):
    async with gateway() as lab, lab.control().rollout("R7") as rollout:
        options = types.HttpOptions(base_url=rollout.base_urls["gemini"])
        client = genai.Client(api_key=rollout.api_key, http_options=options)
        await client.aio.models.generate_content(model="scripted", contents="hi")
        await client.aio.aclose()
        client.close()
        assert len(await lab.entries("R7")) == 1


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "/v1beta/models/scripted:embedContent", 404), ("GET", "/v1beta/models/scripted:generateContent", 405),
    ("POST", "/v1beta/cachedContents", 404), ("GET", "/v1beta/files/x", 404), ("GET", "/v1beta/models/none", 404),
])  # fmt: skip
async def test_what_is_no_call_on_the_protocol_s_paths_is_refused_in_its_words(gateway, method, path, status):
    async with gateway() as lab:
        async with lab.http.request(method, f"{lab.url}/rollout/R1{path}", json=ASK) as response:
            body = await response.json()
        assert (response.status, body["error"]["code"]) == (status, status)
        assert await lab.entries() == []


@pytest.mark.parametrize("field", [{"cachedContent": "x"}, {"generationConfig": {"candidateCount": 2}}])
async def test_what_cannot_be_honoured_is_refused_by_name_and_not_recorded(gateway, field):
    async with gateway() as lab:
        async with lab.http.post(url(lab), json=ASK | field) as response:
            told = (await response.json())["error"]
        assert (response.status, told["status"]) == (400, "INVALID_ARGUMENT")
        assert told["details"][1]["fieldViolations"][0]["field"] in ("cachedContent", "generationConfig.candidateCount")
        assert await lab.entries() == []
