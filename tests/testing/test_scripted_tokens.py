"""The scripted engine's tokens: exact both ways, stable, and checkable one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.testing.scripted import decode, encode, log_prob
from rolltape.testing.scripted.tokenizer import LOG_PROB_PERIOD, SPECIAL, VOCABULARY, token_text


@settings(deadline=None)
@given(st.text())
def test_decoding_inverts_encoding(text: str) -> None:
    assert decode(encode(text)) == text


@settings(deadline=None)
@given(st.text())
def test_encoding_inverts_decoding_of_text(text: str) -> None:
    assert encode(decode(encode(text))) == encode(text)


def test_text_never_becomes_a_special_token() -> None:
    assert max(encode("".join(SPECIAL.values()))) < 256


def test_the_special_ids_are_these_for_good() -> None:
    assert SPECIAL == {
        256: "<|im_start|>",
        257: "<|im_end|>",
        258: "<think>",
        259: "</think>",
        260: "<tool_call>",
        261: "</tool_call>",
        262: "<|image|>",
    }
    assert decode([256, *encode("hi"), 257]) == "<|im_start|>hi<|im_end|>"
    assert [token_text(token) for token in (65, 0xC3, 257)] == ["A", "<0xC3>", "<|im_end|>"]


def test_log_probs_are_negative_distinct_and_exact_in_float32() -> None:
    rng = np.random.default_rng(0)
    tokens, positions = rng.integers(0, VOCABULARY, 5000), rng.integers(0, LOG_PROB_PERIOD, 5000)
    pairs = set(zip(tokens.tolist(), positions.tolist(), strict=True))
    values = [log_prob(token, position) for token, position in pairs]
    assert all(-8 <= value < 0 and float(np.float32(value)) == value for value in values)
    assert len(set(values)) == len(pairs)
    assert (log_prob(0, 0), log_prob(255, LOG_PROB_PERIOD - 1)) == (-1 / 2**20, -(LOG_PROB_PERIOD * 512 - 256) / 2**20)
