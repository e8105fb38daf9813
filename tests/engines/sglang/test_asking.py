"""What SGLang is asked, and of which distribution its answer's log-probs are."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rolltape.chat import ChatRequest, Message
from rolltape.engines.sglang.asking import Asked, Server, ask_chat, ask_raw, has_media, tokenize_body
from rolltape.errors import EngineRefused
from rolltape.tokens import token_ids

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT: dict[str, Any] = {"type": "function", "function": {**TOOL["function"], "strict": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
OPENAI, MODELS = Server(defaults="openai"), Server(defaults="model")


def chat(
    sampling: dict[str, Any] | None = None, server: Server = OPENAI, *, streamed: bool = True, **fields: Any
) -> Asked:
    request = ChatRequest("any", messages=(Message("user", "hi"),), **fields)
    return ask_chat(request, sampling or {}, server, model={"model": "policy"}, streamed=streamed)


def raw(prompt: Any, sampling: dict[str, Any] | None = None, server: Server = OPENAI, **fields: Any) -> Asked:
    return ask_raw(ChatRequest("any", prompt=prompt, **fields), sampling or {}, server, model={"model": "policy"})


def test_a_streamed_chat_asks_for_ids_at_its_end_and_for_counts_on_the_way() -> None:
    assert chat({"temperature": 0.5}, extra={"metadata": {"a": 1}}).body == {
        "model": "policy",
        "messages": [{"role": "user", "content": "hi"}],
        "metadata": {"a": 1},
        "temperature": 0.5,
        "logprobs": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_input_ids_in_sglext": True,
        "return_output_ids_in_sglext": True,
    }


def test_a_whole_chat_asks_for_everything_that_a_stream_refuses() -> None:
    body = chat(streamed=False).body

    assert (body["stream"], body["return_token_ids"], body["return_prompt_token_ids"], body["return_meta_info"]) == (
        False,
        True,
        True,
        True,
    )
    assert "stream_options" not in body


def test_an_answer_is_always_told_in_our_way() -> None:
    extra = {"return_token_ids": True, "n": 2, "input_ids": [1], "top_logprobs": 3, "no_stop_trim": True, "rid": "x"}

    assert not chat(extra=extra).body.keys() & extra.keys()


@pytest.mark.parametrize("prompt", ["Once", (1, 2, 3)])
def test_a_raw_prompt_goes_to_the_native_endpoint_in_its_own_words(prompt: Any) -> None:
    asked = raw(prompt, {"max_tokens": 5, "seed": 3, "min_tokens": 1, "top_p": 0.9}, extra={"stop_token_ids": [7]})

    assert asked.path == "/generate"
    assert asked.body["text" if isinstance(prompt, str) else "input_ids"] == (
        prompt if isinstance(prompt, str) else [1, 2, 3]
    )
    assert asked.body["sampling_params"] == {
        "max_new_tokens": 5,
        "sampling_seed": 3,
        "min_new_tokens": 1,
        "top_p": 0.9,
        "stop_token_ids": [7],
    }
    assert asked.body["return_logprob"] is True
    assert asked.body["stream"] is True


def test_a_raw_prompt_without_max_tokens_runs_to_its_end() -> None:
    """SGLang's own default would cut it at 128 tokens."""
    assert raw("x").body["sampling_params"] == {"max_new_tokens": None}


def test_an_output_format_of_a_raw_prompt_is_its_schema_or_refused() -> None:
    asked = raw("x", response_format=SCHEMA)

    assert json.loads(asked.body["sampling_params"]["json_schema"]) == {"type": "object"}
    assert asked.log_prob_kind == "grammar_masked"
    with pytest.raises(EngineRefused, match="response_format"):
        raw("x", response_format={"type": "structural_tag"})


def test_what_the_prompt_leaves_is_the_most_that_is_asked_for() -> None:
    prompt = token_ids([1, 2, 3])

    assert chat({"max_tokens": 50}).within(10, prompt).body["max_tokens"] == 7
    assert raw((1, 2, 3), {"max_tokens": 50}).within(10, prompt).body["sampling_params"]["max_new_tokens"] == 7
    assert chat({"max_tokens": 5}).within(10, prompt).applied["max_tokens"] == 5
    assert chat({"max_tokens": 50}).within(None, prompt).applied["max_tokens"] == 50
    with pytest.raises(EngineRefused) as caught:
        chat().within(3, prompt)
    assert caught.value.overflow == (3, 3)


def test_no_limit_has_the_one_name_that_sglang_takes() -> None:
    assert chat({"top_k": 0}).applied == {"top_k": -1}


def test_sampling_that_sglang_ignores_is_neither_sent_nor_called_applied() -> None:
    asked = chat({"typical_p": 0.3, "top_p": 0.9})

    assert asked.applied == {"top_p": 0.9}
    assert "typical_p" not in asked.body


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        ({}, "raw"),
        ({"temperature": 1.0}, "raw"),
        ({"temperature": 0.6}, "temperature_scaled"),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 40, "min_p": 0.1}, "temperature_scaled"),
        ({"temperature": 0}, "raw"),
        ({"temperature": 1e-9}, "raw"),
        ({"temperature": 1.0, "top_k": 1}, "raw"),
        ({"temperature": 0.6, "top_k": 1}, "unknown"),
        ({"temperature": 1.0, "repetition_penalty": 1.05}, "unknown"),
        ({"temperature": 1.0, "frequency_penalty": 0.1}, "unknown"),
        ({"temperature": 1.0, "logit_bias": {"5": -1}}, "unknown"),
        ({"temperature": 1.0, "min_tokens": 4}, "unknown"),
    ],
)
def test_log_probs_are_of_the_scaled_distribution_by_default(sampling: dict[str, Any], kind: str) -> None:
    assert chat(sampling).log_prob_kind == kind
    assert raw("x", sampling).log_prob_kind == kind


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        ({}, "raw"),
        ({"temperature": 0.6}, "raw"),
        ({"temperature": 0.6, "top_k": 1}, "raw"),
        ({"temperature": 1.0, "presence_penalty": 0.1}, "unknown"),
    ],
)
def test_original_log_probs_are_raw_whatever_the_temperature(sampling: dict[str, Any], kind: str) -> None:
    assert chat(sampling, Server(original_logprobs=True, defaults="openai")).log_prob_kind == kind


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        ({}, "unknown"),
        ({"temperature": 1.0}, "unknown"),
        ({"temperature": 1.0, "repetition_penalty": 1.0}, "raw"),
        ({"temperature": 0.6, "repetition_penalty": 1.0}, "unknown"),
        ({"temperature": 0.6, "repetition_penalty": 1.0, "top_k": -1}, "temperature_scaled"),
    ],
)
def test_what_a_models_own_defaults_may_have_changed_is_unknown(sampling: dict[str, Any], kind: str) -> None:
    assert chat(sampling, MODELS).log_prob_kind == kind


def test_what_an_older_server_does_by_default_is_taken_as_neutral_but_for_the_temperature() -> None:
    assert chat({"temperature": 0.6}, Server()).log_prob_kind == "temperature_scaled"
    assert chat({}, Server()).log_prob_kind == "unknown"


def test_a_models_defaults_do_not_reach_raw_prompts_and_preferred_ones_do() -> None:
    assert raw("x", {"temperature": 0.6}, MODELS).log_prob_kind == "temperature_scaled"
    assert raw("x", {"temperature": 0.6}, Server(defaults="model", preferred=True)).log_prob_kind == "unknown"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": SCHEMA},
        {"response_format": {"type": "json_object"}},
        {"tools": (TOOL,), "tool_choice": "required"},
        {"tools": (TOOL,), "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": (STRICT,)},
        {"extra": {"regex": "a+"}},
        {"extra": {"ebnf": "root ::= 'a'"}},
    ],
)
def test_a_grammar_is_named_in_either_mode(fields: dict[str, Any]) -> None:
    assert chat({"temperature": 1.0}, **fields).log_prob_kind == "grammar_masked"
    original = Server(original_logprobs=True, defaults="openai")
    assert chat({"temperature": 1.0}, original, **fields).log_prob_kind == "grammar_masked"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tools": (TOOL,), "tool_choice": "auto", "extra": {"parallel_tool_calls": False}},
        {"tools": (STRICT,), "tool_choice": "none"},
    ],
)
def test_where_no_grammar_acts_none_is_named(fields: dict[str, Any]) -> None:
    assert chat({"temperature": 1.0}, **fields).log_prob_kind == "raw"


def test_the_grammar_of_strict_tools_can_be_dropped_or_be_everywhere() -> None:
    dropped = chat({}, Server(defaults="openai", tool_grammar="drop"), tools=(STRICT,))
    assert dropped.body["tools"] == [TOOL]
    assert dropped.log_prob_kind == "raw"
    always = chat({}, Server(defaults="openai", tool_grammar="always"), tools=(TOOL,))
    assert always.log_prob_kind == "grammar_masked"


def test_custom_logit_processors_leave_the_distribution_unknown() -> None:
    assert chat({}, extra={"custom_logit_processor": "x"}).log_prob_kind == "unknown"
    assert raw("x", extra={"custom_logit_processor": "x"}).log_prob_kind == "unknown"


def test_the_value_and_its_kind_stand_together() -> None:
    """LP-01: raw is -1.4076 at any temperature, of the scaled distribution -2.1429 at 0.5; dividing is neither."""
    logits, temperature, sampled = (2.0, 1.0, 0.0), 0.5, 1

    def log_prob(scale: float) -> float:
        return logits[sampled] / scale - math.log(sum(math.exp(logit / scale) for logit in logits))

    by_kind = {"raw": log_prob(1), "temperature_scaled": log_prob(temperature)}

    asked = {kind: chat({"temperature": temperature}, server) for kind, server in servers().items()}

    assert {kind: round(value, 4) for kind, value in by_kind.items()} == {"raw": -1.4076, "temperature_scaled": -2.1429}
    assert all(one.log_prob_kind == kind and one.applied["temperature"] == 0.5 for kind, one in asked.items())
    assert round(by_kind["raw"] / temperature, 4) == -2.8152 not in by_kind.values()


def servers() -> dict[str, Server]:
    return {"raw": Server(original_logprobs=True, defaults="openai"), "temperature_scaled": OPENAI}


def test_greedy_log_probs_were_recorded_at_temperature_one_whatever_was_asked() -> None:
    """The recorded server, all of whose batch was greedy."""
    folder = Path(__file__).parents[2] / "data" / "sglang"

    def told(name: str) -> list[float]:
        meta = json.loads((folder / f"{name}.json").read_text())["response"]["meta_info"]
        return [value for value, *_ in meta["output_token_logprobs"]]

    assert told("raw_T0.5") == told("chat_stop")[:3]


def test_a_conversation_is_counted_by_what_would_be_rendered() -> None:
    request = ChatRequest("any", tools=(TOOL,), tool_choice="auto", messages=(Message("user", "hi"),))

    assert tokenize_body(request, {"model": "policy"}) == {
        "model": "policy",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [TOOL],
        "tool_choice": "auto",
    }
    assert tokenize_body(ChatRequest("any", prompt="Once"), {"model": "policy"}) == {
        "model": "policy",
        "prompt": "Once",
    }


def test_media_is_anything_but_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}

    assert has_media(ChatRequest("m", messages=(Message("user", ({"type": "text", "text": "a"}, image)),)))
    assert not has_media(
        ChatRequest("m", messages=(Message("user", ({"type": "text", "text": "a"},)), Message("user", "b")))
    )
