"""Two spellings of one object: which member was added, and whether that is what differs first."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.rebuild.breaks import arguments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4)


@given(OBJECTS, st.sampled_from([(", ", ": "), (",", ":"), (",\n  ", ": ")]))
def test_members_have_the_places_at_which_they_are_written(value, separators):
    text = json.dumps(value, separators=separators)

    for path, start, end in arguments.members(text):
        held = value
        for name in path:
            held = held[name]
        written = text[start:end].strip().strip(",").strip()
        name, _, spelled = written.partition(json.dumps(path[-1]))
        assert not name
        assert json.loads(spelled.lstrip().removeprefix(":")) == held


@given(OBJECTS, st.booleans())
def test_a_member_that_is_put_behind_the_others_is_found(value, added):
    was, now = json.dumps(value), json.dumps(value | {"a new name": added})

    assert arguments.holds(json.loads(now), value)
    assert arguments.added_at(was, now) == "a new name"


@given(OBJECTS)
def test_the_same_value_in_another_spelling_gains_nothing(value):
    was, now = json.dumps(value), json.dumps(value, indent=1)

    assert arguments.same_value(json.loads(was), json.loads(now))
    assert arguments.added_at(was, now) is None


@pytest.mark.parametrize(
    ("was", "now", "member"),
    [
        ('{"a": 1}', '{"b": 2, "a": 1}', "b"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1, "c": 2}}', "a.c"),
        ('{"a": 1}', '{"a":1,"b":2}', None),
        ('{"a": 1, "z": 2}', '{"z": 2, "a": 1, "b": 3}', None),
        ("{}", '{"b": 2}', "b"),
    ],
)
def test_what_stands_at_the_first_difference_decides(was, now, member):
    assert arguments.added_at(was, now) == member


def test_true_is_not_one():
    assert not arguments.same_value({"a": True}, {"a": 1})
    assert not arguments.holds({"a": 1}, {"a": True})


@pytest.mark.parametrize("text", ["", "[1]", '{"a": ', "7", "{" * 70, '{"a":' * 70 + "1" + "}" * 70])
def test_what_is_no_object_or_nested_too_deep_is_none(text):
    assert arguments.parsed(text) is None
