"""Changed bodies and answers, and bytes of any kind: nothing but what the contract names ever comes out."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import mutate, targets

SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("protocol", targets.PROTOCOLS)
def test_a_changed_body_is_a_request_or_a_refusal_in_its_dialect(protocol):
    seeds = targets.bodies(protocol)

    @given(SEEDS)
    @settings(max_examples=150, deadline=None)
    def holds(seed):
        targets.decode(protocol, mutate.body(seeds, random.Random(seed)))

    holds()


@pytest.mark.parametrize("protocol", targets.PROTOCOLS)
def test_any_bytes_are_a_request_or_a_refusal_in_its_dialect(protocol):
    @given(st.binary(max_size=200))
    @settings(max_examples=50, deadline=None)
    def holds(data):
        targets.decode(protocol, data)

    holds()


@pytest.mark.parametrize("reader", targets.READERS)
def test_a_changed_answer_is_events_or_an_engine_that_broke(reader):
    seeds = targets.answers(reader)

    @given(SEEDS)
    @settings(max_examples=100, deadline=None)
    def holds(seed):
        targets.read(reader, mutate.answer(seeds, random.Random(seed)))

    holds()


@pytest.mark.parametrize("protocol", targets.PROTOCOLS)
def test_what_harnesses_sent_is_no_crash_either(protocol):
    for body in targets.bodies(protocol):
        targets.decode(protocol, body)


@pytest.mark.parametrize("reader", targets.READERS)
def test_what_engines_answered_is_no_crash_either(reader):
    for data in targets.answers(reader):
        targets.read(reader, data)
