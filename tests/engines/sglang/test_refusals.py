"""SGLang's own words for what it would not do, to our errors."""

import json

import pytest

from rolltape.engines.refusals import TooManyTokens
from rolltape.engines.sglang.refusals import refusal
from rolltape.errors import EngineRefused, RequestError


def refused(message: str) -> RequestError:
    body = {"object": "error", "message": message, "type": "BadRequest", "param": "tools", "code": 400}
    return refusal(400, json.dumps(body).encode(), "/v1/chat/completions")


@pytest.mark.parametrize(
    "message",
    [
        "The input (33000 tokens) is longer than the model's context length (32768 tokens).",
        "Input length (33000 tokens) exceeds the maximum allowed length (32768 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        "The input (32768 tokens) is longer than the model's context length (32768 tokens).",
    ],
)
def test_a_prompt_that_does_not_fit_is_an_overflow_with_its_numbers(message: str) -> None:
    error = refused(message)

    assert isinstance(error, EngineRefused)
    assert error.code == "context_length_exceeded"
    assert error.overflow is not None
    assert error.overflow[1] == 32768


def test_what_was_to_be_sampled_and_does_not_fit_tells_the_room() -> None:
    error = refused(
        "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of "
        "47000 tokens: 15000 tokens from the input messages and 32000 tokens for the completion. Please reduce the "
        "number of tokens in the input messages or the completion to fit within the limit."
    )

    assert isinstance(error, TooManyTokens)
    assert error.room == 17768


def test_any_other_refusal_keeps_sglangs_words_and_field() -> None:
    error = refused("top_p must be in (0, 1], got 3.0.")

    assert isinstance(error, EngineRefused)
    assert (error.status, error.message, error.param) == (400, "top_p must be in (0, 1], got 3.0.", "tools")
