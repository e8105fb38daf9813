"""Token arrays, their digests, and the exact prefix tree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.errors import EntryError
from rolltape.tokens import PrefixTree, common_prefix, digest, json_log_probs, log_probs, token_ids

ids = st.lists(st.integers(0, 3), max_size=12)


@pytest.mark.parametrize("bad", [[-1], [2**31], [1.5], ["1"], [True], [[1], [2]], [1, None]])
def test_what_is_no_token_id_is_refused(bad):
    with pytest.raises(EntryError):
        token_ids(bad)


def test_a_negative_id_in_a_ready_array_is_refused_too():
    with pytest.raises(EntryError):
        token_ids(np.array([1, -2], np.int32))


def test_arrays_are_read_only_and_a_ready_one_is_not_copied():
    ready = np.array([1, 2, 3], np.int32)
    array = token_ids(ready)
    assert np.shares_memory(array, ready)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 9


def test_an_unknown_log_prob_is_never_zero():
    values = log_probs([-0.5, None, float("-inf"), float("nan")])
    assert json_log_probs(values) == [-0.5, None, None, None]


@given(st.lists(st.floats(-100, 0, width=32)))
def test_log_probs_read_back_from_json_as_the_same_float32(values):
    array = log_probs(values)
    assert log_probs(json_log_probs(array)).tobytes() == array.tobytes()


def test_short_decimals_stay_short():
    assert json_log_probs(log_probs([-0.1, -0.05, -1e-07])) == [-0.1, -0.05, -1e-07]


@given(ids, ids)
def test_the_common_prefix_is_the_longest_one(a, b):
    n = common_prefix(token_ids(a), token_ids(b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_two_views_of_one_buffer_share_all_of_the_shorter():
    buffer = token_ids(np.arange(10, dtype=np.int32))
    assert common_prefix(buffer[:4], buffer) == 4


def test_views_of_one_buffer_with_other_steps_are_read():
    buffer = np.arange(10, dtype=np.int32)
    assert common_prefix(token_ids(buffer[::2]), token_ids(buffer)) == 1
    assert common_prefix(token_ids(buffer[::-1]), token_ids(buffer[9:])) == 1
    assert common_prefix(token_ids(buffer[2:]), token_ids(buffer[3:])) == 0


def test_a_digest_is_that_of_the_whole_sequence_however_it_is_cut():
    assert digest(token_ids([1, 2]), token_ids([3])) == digest(token_ids([1, 2, 3]))
    assert digest(token_ids([1, 2])) != digest(token_ids([1, 2, 0]))


@given(st.lists(ids.filter(bool), max_size=12), ids)
def test_the_tree_agrees_with_comparing_everything(sequences, wanted):
    tree: PrefixTree[int] = PrefixTree()
    for key, sequence in enumerate(sequences):
        tree.add(token_ids(sequence), key)
    match = tree.match(token_ids(wanted))
    whole = max((len(s) for s in sequences if wanted[: len(s)] == s), default=0)
    depth = max((common_prefix(token_ids(s), token_ids(wanted)) for s in sequences), default=0)
    assert (match.whole_length, match.depth) == (whole, depth)
    if whole:
        assert sequences[match.whole] == wanted[:whole]
    if depth:
        assert sequences[match.nearest][:depth] == wanted[:depth]


@given(st.lists(ids.filter(bool), max_size=12))
def test_the_tree_holds_each_distinct_id_once(sequences):
    tree: PrefixTree[int] = PrefixTree()
    for key, sequence in enumerate(sequences):
        tree.add(token_ids(sequence), key)
    assert tree.distinct_ids == len({tuple(s[: i + 1]) for s in sequences for i in range(len(s))})
