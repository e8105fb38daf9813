"""One call as a state machine."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.capture import CallIdentity, ModelCall
from rolltape.chat import ChatRequest, Delta, Finished, Message, Started, ToolCallDelta, pin_sampling
from rolltape.record import Outcome

REQUEST = ChatRequest(model="asked", messages=(Message(role="user", content="hi"),), sampling={"temperature": 0.7})
PROMPT = np.array([1, 10, 11], np.int32)


def run(*events) -> ModelCall:
    call = ModelCall(
        CallIdentity(
            rollout_id="R",
            model_call_id="c",
            response_id="chatcmpl-c",
            protocol="openai_chat",
            engine="test",
            model="served",
            request=REQUEST,
            request_digest="sha256:0",
            policy_version="7",
            started_at=5.0,
        )
    )
    for at, event in enumerate(events):
        call.feed(event, 10.0 + at)
    return call


def started(prompt=PROMPT) -> Started:
    return Started(prompt, {"temperature": 1.0})


def completed(*events):
    return run(*events).completed(99.0, policy_version_end="8")


def test_a_clean_call_becomes_a_clean_entry():
    entry = completed(started(), Delta((5,), (-0.1,), "a"), Delta((6, 2), (-0.2, -0.3), "b"), Finished("stop", 3))
    assert entry.faults == ()
    assert entry.prompt_token_ids.tolist() == [1, 10, 11]
    assert entry.generation_token_ids.tolist() == [5, 6, 2]
    assert entry.finish_reason == "stop"
    assert (entry.started_at, entry.first_token_at, entry.created_at) == (5.0, 11.0, 99.0)
    assert (entry.policy_version, entry.policy_version_end) == ("7", "8")
    assert (entry.model_asked, entry.model) == ("asked", "served")
    assert (entry.sampling_asked, entry.sampling_applied) == ({"temperature": 0.7}, {"temperature": 1.0})


def test_text_that_a_parser_held_back_still_brings_its_ids():
    entry = completed(started(), Delta((58,), (-0.2,)), Delta((59, 2), (-0.1, -0.1)), Finished("tool_calls", 3))
    assert entry.generation_token_ids.tolist() == [58, 59, 2]
    assert entry.ids_exact


def test_fewer_ids_than_the_engine_counts_put_the_call_in_doubt():
    entry = completed(started(), Delta((58,), (-0.2,)), Delta((59, 2), (-0.1, -0.1)), Finished("tool_calls", 14))
    assert entry.faults == ("token_count_mismatch: recorded 3, the engine counts 14",)
    assert not entry.ids_exact


def test_an_answer_without_ids_is_marked_and_not_counted_as_recorded():
    entry = completed(started(), Delta(text="hello"), Finished("stop", None))
    assert "generation_ids_missing" in entry.faults
    assert not entry.ids_exact


def test_a_call_that_samples_nothing_is_a_clean_empty_entry():
    entry = completed(started(), Finished("stop", 0))
    assert (entry.faults, len(entry.generation_token_ids)) == ((), 0)


def test_an_engine_that_does_not_tell_the_prompt_ids_marks_the_call():
    assert "prompt_ids_missing" in completed(started(None), Delta((5,), (-0.1,)), Finished("stop", 1)).faults


def test_a_broken_call_keeps_its_ids_as_evidence():
    entry = run(started(), Delta((5, 6), (-0.1, -0.2), "ab")).ended(
        Outcome.FAILED, 99.0, "idle timeout", policy_version_end=None
    )
    assert entry.generation_token_ids.tolist() == [5, 6]
    assert (entry.outcome, entry.finish_reason, entry.error) == (Outcome.FAILED, None, "idle timeout")


def test_a_call_refused_at_the_door_has_no_ids_and_no_fault():
    entry = run().ended(Outcome.REFUSED, 99.0, "too long", policy_version_end=None)
    assert (entry.faults, entry.length) == ((), 0)


def test_the_reply_is_what_the_deltas_made_visible():
    call = run(
        started(),
        Delta((1,), (-1.0,), reasoning="hm"),
        Delta((2,), (-1.0,), "text"),
        Delta((3,), (-1.0,), tool_calls=(ToolCallDelta(0, "call_a", "bash", '{"x":'),)),
        Delta((4,), (-1.0,), tool_calls=(ToolCallDelta(0, arguments="1}"), ToolCallDelta(1, "call_b", "ls", "{}"))),
        Finished("tool_calls", 4, cached_tokens=2),
    )
    message = call.reply(created=1).message
    assert (message.reasoning, message.content) == ("hm", "text")
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [
        ("call_a", "bash", '{"x":1}'),
        ("call_b", "ls", "{}"),
    ]
    usage = call.reply(created=1).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (3, 4, 2)
    kinds = [item["type"] for item in call.completed(1.0, policy_version_end=None).output_items]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(-9, 0, width=32)), max_size=20), st.data())
def test_however_the_engine_cuts_its_deltas_the_entry_is_the_same(sampled, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sampled)), max_size=5)))
    edges = [0, *cuts, len(sampled)]
    deltas = [
        Delta(tuple(i for i, _ in sampled[a:b]), tuple(p for _, p in sampled[a:b]))
        for a, b in itertools.pairwise(edges)
    ]
    entry = completed(started(), *deltas, Finished("stop", len(sampled)))
    assert entry.generation_token_ids.tolist() == [i for i, _ in sampled]
    assert entry.generation_log_probs.tolist() == [p for _, p in sampled]
    assert entry.faults == ()


PIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0, "top_p": 0.9},
        {},
        {"temperature": 0.7, "top_k": 20, "min_p": 0.05, "presence_penalty": 1.5, "logit_bias": {"5": 1}},
    ],
)
def test_a_pin_wins_over_everything_and_removes_what_else_shapes_the_distribution(asked):
    assert pin_sampling(asked, PIN) == PIN


def test_a_pin_leaves_the_harness_its_own_lengths_and_stops():
    asked = {"max_tokens": 7, "stop": ["x"], "seed": 3, "min_p": 0.1}
    assert pin_sampling(asked, {"temperature": 1.0}) == {"max_tokens": 7, "stop": ["x"], "seed": 3, "temperature": 1.0}


def test_without_a_pin_the_request_is_forwarded_as_it_is():
    assert pin_sampling({"min_p": 0.1}, {}) == {"min_p": 0.1}
