"""vLLM's own words for what it would not do, as recorded, to our errors."""

import json

import pytest

from rolltape.engines.refusals import TooManyTokens
from rolltape.engines.vllm.refusals import leaves_no_room, refusal
from rolltape.errors import EngineBroken, EngineRefused, EngineUnavailable, RequestError

PATH = "/v1/chat/completions"


def refused(status: int, message: str, param: str | None = None) -> RequestError:
    body = {"error": {"message": message, "type": "BadRequestError", "param": param, "code": status}}
    return refusal(status, json.dumps(body).encode(), PATH)


@pytest.mark.parametrize(
    ("message", "prompt"),
    [
        (
            "This model's maximum context length is 32768 tokens. However, your prompt contains at least 32769 input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            "prompt. (parameter=input_tokens, value=32769)",
            32769,
        ),
        (
            "This model's maximum context length is 32768 tokens. However, your prompt contains 9000000 characters "
            "(more than 8388608 characters, which is the upper bound for 32768 input tokens). Please reduce the length "
            "of the input prompt.",
            32769,
        ),
        ("Input length (40000) exceeds model's maximum context length (32768).", 40000),
    ],
)
def test_a_prompt_that_does_not_fit_is_an_overflow_with_its_numbers(message: str, prompt: int) -> None:
    error = refused(400, message)

    assert isinstance(error, EngineRefused)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert f"{prompt} tokens" in error.message
    assert "32768" in error.message


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 32768 tokens. However, you requested 47000 tokens (15000 in the "
        "messages, 32000 in the completion). Please reduce the length of the messages or completion.",
        "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 32768 "
        "tokens and your request has 15000 input tokens (32000 > 32768 - 15000).",
    ],
)
def test_a_server_that_does_not_clamp_tells_how_much_room_there_is(message: str) -> None:
    error = refused(400, message)

    assert isinstance(error, TooManyTokens)
    assert error.room == 17768


def test_a_prompt_of_exactly_the_context_is_an_overflow_too() -> None:
    said = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    error = refused(400, said, "max_tokens")

    assert isinstance(error, EngineRefused)
    overflow = leaves_no_room(error, 32768)
    assert overflow is not None
    assert overflow.code == "context_length_exceeded"
    assert leaves_no_room(EngineRefused(400, "invalid_request", "top_p must be in (0, 1]"), 32768) is None


def test_any_other_refusal_keeps_vllms_words_and_field() -> None:
    error = refused(400, "top_p must be in (0, 1], got 3.0. (parameter=top_p, value=3.0)", "top_p")

    assert isinstance(error, EngineRefused)
    assert not isinstance(error, TooManyTokens)
    assert (error.status, error.code, error.param) == (400, "invalid_request", "top_p")
    assert error.message.startswith("top_p must be")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, EngineBroken),
        (404, EngineRefused),
        (422, EngineRefused),
        (429, EngineUnavailable),
        (500, EngineBroken),
        (502, EngineBroken),
        (503, EngineUnavailable),
        (302, EngineBroken),
    ],
)
@pytest.mark.parametrize("body", [b"<html>", b"", b'{"detail": "Not Found"}', b"[]", b'{"error": null}', b"\xff"])
def test_each_status_has_its_error_whatever_the_body(status: int, error: type[RequestError], body: bytes) -> None:
    assert isinstance(refusal(status, body, PATH), error)
