"""What vLLM is asked, and of which distribution its answer's log-probs are."""

from typing import Any

import pytest

from rolltape.chat import ChatRequest, Message, ToolCall
from rolltape.engines.vllm.asking import Asked, ask, tokenize_body

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT: dict[str, Any] = {"type": "function", "function": {**TOOL["function"], "strict": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}


def asked(sampling: dict[str, Any] | None = None, *, context: int | None = 1000, **fields: Any) -> Asked:
    options = {name: fields.pop(name) for name in ("mode", "tool_grammar") if name in fields}
    request = ChatRequest("any", messages=(Message("user", "hi"),), **fields)
    return ask(request, sampling or {}, model="policy", context=context, **options)


def test_images_pass_as_the_parts_that_they_came_in() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    messages = (Message("user", ({"type": "text", "text": "see"}, image)), Message("tool", (image,), tool_call_id="c"))
    body = ask(ChatRequest("any", messages=messages), {}, model="policy", context=None).body
    assert [message["content"] for message in body["messages"]] == [[{"type": "text", "text": "see"}, image], [image]]


def test_a_request_is_forwarded_as_it_is_but_for_capture_fields() -> None:
    call = ToolCall("c1", "f", "{not json")
    messages = (Message("user", ({"type": "text", "text": "hi"},)), Message("assistant", None, "hm", (call,)))
    request = ChatRequest("any", tools=(TOOL,), tool_choice="auto", extra={"metadata": {"a": 1}}, messages=messages)

    body = ask(request, {"temperature": 0.5}, model="policy", context=None).body

    assert body == {
        "model": "policy",
        "messages": [messages[0].to_openai(), {**messages[1].to_openai(), "reasoning": "hm"}],
        "tools": [TOOL],
        "tool_choice": "auto",
        "metadata": {"a": 1},
        "temperature": 0.5,
        "logprobs": True,
        "top_logprobs": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def test_an_answer_is_always_told_in_our_way() -> None:
    extra = {"return_token_ids": False, "echo": True, "n": 2, "stream_interval": 9, "prompt_logprobs": 3}

    body = asked(extra=extra, stream=False).body

    assert body["return_token_ids"] is True
    assert body["stream"] is True
    assert not body.keys() & {"echo", "n", "stream_interval", "prompt_logprobs"}


def test_max_tokens_is_clamped_to_the_whole_context() -> None:
    """vLLM refuses more, and clamps to what the prompt leaves."""
    clamped = asked({"max_tokens": 32_000}, context=1000)

    assert clamped.body["max_tokens"] == clamped.applied["max_tokens"] == 1000
    assert asked({"max_tokens": 32_000}, context=None).body["max_tokens"] == 32_000
    assert "max_tokens" not in asked({}).body


def test_sampling_that_vllm_ignores_is_neither_sent_nor_called_applied() -> None:
    result = asked({"typical_p": 0.3, "top_p": 0.9, "seed": 4})

    assert result.applied == {"top_p": 0.9, "seed": 4}
    assert "typical_p" not in result.body


def test_a_tool_choice_without_tools_is_left_out() -> None:
    assert "tool_choice" not in asked(tool_choice="auto").body


@pytest.mark.parametrize("prompt", ["Once", (1, 2, 3)])
def test_a_raw_prompt_goes_to_the_completions_endpoint(prompt: Any) -> None:
    result = ask(ChatRequest("any", prompt=prompt), {}, model="policy", context=9)

    assert result.path == "/v1/completions"
    assert result.body["prompt"] == (prompt if isinstance(prompt, str) else [1, 2, 3])
    assert result.body["logprobs"] == 0
    assert "messages" not in result.body


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "raw"),
        ({"tools": (TOOL,)}, "raw"),
        ({"tools": (STRICT,), "tool_choice": "none"}, "raw"),
        ({"response_format": {"type": "text"}}, "raw"),
        ({"tools": (TOOL,), "tool_choice": "required"}, "grammar_masked"),
        ({"tools": (TOOL,), "tool_choice": {"type": "function", "function": {"name": "f"}}}, "grammar_masked"),
        ({"response_format": SCHEMA}, "grammar_masked"),
        ({"extra": {"structured_outputs": {"regex": "a"}}}, "grammar_masked"),
        ({"tools": (STRICT,)}, "grammar_masked"),
        ({"tools": (TOOL,), "extra": {"parallel_tool_calls": False}}, "grammar_masked"),
        ({"extra": {"parallel_tool_calls": False}}, "raw"),
        ({"tools": (TOOL,), "tool_grammar": "always"}, "grammar_masked"),
    ],
)
def test_a_generation_that_a_grammar_may_have_held_says_so(fields: dict[str, Any], kind: str) -> None:
    assert asked(**fields).log_prob_kind == kind


def test_dropping_the_tool_grammar_leaves_the_log_probs_raw() -> None:
    loose = asked(tools=(STRICT,), extra={"parallel_tool_calls": False}, tool_grammar="drop")

    assert loose.body["tools"] == [TOOL]
    assert "parallel_tool_calls" not in loose.body
    assert loose.log_prob_kind == "raw"


PLAIN = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        ({"temperature": 1.0, **PLAIN}, "raw"),
        ({"temperature": 0, **PLAIN}, "raw"),
        ({"temperature": 0.7, **PLAIN}, "temperature_scaled"),
        ({"temperature": 0.7}, "unknown"),
        ({"temperature": 0.7, **PLAIN, "top_k": 20}, "unknown"),
        ({"temperature": 0.7, **PLAIN, "presence_penalty": 1}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_processed_log_probs_are_called_scaled_only_where_nothing_else_acts(
    sampling: dict[str, Any], kind: str
) -> None:
    assert asked(sampling, mode="processed_logprobs").log_prob_kind == kind


def test_tokens_are_counted_with_all_that_changes_the_rendering() -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low", "metadata": {}}
    request = ChatRequest("any", tools=(TOOL,), extra=extra, messages=(Message("user", "hi"),))

    assert tokenize_body(request, "policy") == {
        "model": "policy",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [TOOL],
        "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"},
    }
