"""What is sent to llama.cpp is neutral unless asked for, and what it cannot do is refused by name."""

import pytest

from rolltape.chat import ChatRequest
from rolltape.engines.llamacpp.sampling import NEUTRAL, grammar, plan
from rolltape.errors import EngineRefused

TOOL = {"type": "function", "function": {"name": "f"}}


def test_nothing_asked_for_is_the_models_own_distribution() -> None:
    made = plan({}, room=100, seed=5)

    assert made.applied == {**NEUTRAL, "seed": 5, "max_tokens": 100}
    assert (made.fields["top_k"], made.fields["top_p"], made.fields["min_p"]) == (0, 1.0, 0.0)
    assert made.fields["repeat_penalty"] == 1.0


def test_what_is_asked_for_is_applied_and_reported() -> None:
    made = plan({"temperature": 0.5, "top_k": -1, "seed": 7, "stop": "x", "logit_bias": {"12": -1}}, room=9, seed=5)

    assert made.applied["temperature"] == 0.5
    assert made.applied["top_k"] == 0
    assert made.applied["stop"] == ["x"]
    assert made.fields["logit_bias"] == [[12, -1]]
    assert made.fields["seed"] == 7


def test_max_tokens_is_clamped_to_the_room_and_reported() -> None:
    assert plan({"max_tokens": 32_000}, room=9, seed=5).applied["max_tokens"] == 9


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [1]}, "stop"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(asked: dict[str, object], param: str) -> None:
    with pytest.raises(EngineRefused) as refused:
        plan(asked, room=9, seed=5)

    assert (refused.value.status, refused.value.param) == (400, param)


def test_fields_that_ask_for_nothing_are_no_reason_to_refuse() -> None:
    plan({"min_tokens": 0, "use_beam_search": False, "length_penalty": 1.0, "stop": None}, room=9, seed=5)


@pytest.mark.parametrize(
    "request_",
    [
        ChatRequest("m", tools=(TOOL,), tool_choice="required"),
        ChatRequest("m", tools=(TOOL,), tool_choice={"type": "function", "function": {"name": "f"}}),
        ChatRequest("m", tools=(TOOL,), response_format={"type": "json_object"}),
        ChatRequest("m", response_format={"type": "xml"}),
        ChatRequest("m", response_format={"type": "json_schema"}),
    ],
)
def test_a_choice_or_format_that_cannot_be_enforced_is_refused(request_: ChatRequest) -> None:
    with pytest.raises(EngineRefused):
        grammar(request_)


def test_a_json_schema_becomes_a_grammar() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}

    assert grammar(ChatRequest("m", response_format=form)) == {"json_schema": schema}
    assert grammar(ChatRequest("m", response_format={"type": "text"})) == {}
    assert grammar(ChatRequest("m", tools=(TOOL,), tool_choice="auto")) == {}
