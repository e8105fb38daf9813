"""The tool-call machine: what comes out never depends on how the text was cut."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.chat import ToolCallDelta
from rolltape.engines.llamacpp.tools import Found, ToolCallParser, new_call_id

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city":  "Paris"}}\n</tool_call>'


def parse(*pieces: str) -> Found:
    numbers = itertools.count()
    parser = ToolCallParser(lambda: f"call_{next(numbers)}")
    found = [*map(parser.feed, pieces), parser.close()]
    return Found("".join(f.text for f in found), tuple(c for f in found for c in f.calls))


def test_a_call_keeps_the_arguments_as_they_were_sampled() -> None:
    assert parse(CALL) == Found("", (ToolCallDelta(0, "call_0", "get_weather", '{"city":  "Paris"}'),))


def test_text_before_and_after_a_call_is_kept() -> None:
    found = parse(f"Let me see.\n{CALL}\nDone.")

    assert found.text == "Let me see.\n\nDone."
    assert len(found.calls) == 1


def test_white_space_between_and_after_calls_is_the_templates_own() -> None:
    found = parse(f"{CALL}\n{CALL}\n")

    assert found.text == ""
    assert [call.index for call in found.calls] == [0, 1]


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"a": 1}',  # unbalanced
        '{"name": "f", "arguments": [1]}',  # arguments are no object
        '{"name": "f"}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "arguments": {}, "id": 1}',  # a member that would be lost
        '{"name": "f", "name": "g", "arguments": {}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": "line\nbreak"}}',
        "f(1)",
        "",
        "[" * 100_000,
    ],
)
def test_what_is_no_call_stays_visible_to_the_letter(body: str) -> None:
    text = f"a <tool_call>{body}</tool_call> b"

    assert parse(text) == Found(text)


@pytest.mark.parametrize("text", ["<tool_call>", "<tool_cal", '<tool_call>{"name": "f", "arguments": {}}', "a < b <"])
def test_an_unclosed_tag_is_text(text: str) -> None:
    assert parse(text) == Found(text)


def test_a_closing_tag_inside_a_string_is_part_of_it() -> None:
    arguments = json.dumps({"text": 'see </tool_call> and "quotes" \\'})

    found = parse(f'<tool_call>{{"name": "write", "arguments": {arguments}}}</tool_call>')

    assert [call.arguments for call in found.calls] == [arguments]
    assert found.text == ""


def test_a_good_call_after_a_broken_one_is_found() -> None:
    broken = '<tool_call>{"name": "x</tool_call> oh '

    found = parse(broken + CALL)

    assert found.text == broken
    assert len(found.calls) == 1


def test_ordinary_text_passes_at_once() -> None:
    assert ToolCallParser().feed("a < b").text == "a < b"
    assert ToolCallParser().feed("a <tool").text == "a "


def test_ids_look_like_those_of_openai() -> None:
    assert re.fullmatch(r"call_[0-9a-f]{24}", new_call_id())
    assert new_call_id() != new_call_id()


FRAGMENTS = st.sampled_from(
    [CALL, "<tool_call>", "</tool_call>", "\n", " ", "x", '"', "\\", "{", "}", "<", '{"name": "f", "arguments": {}}']
)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=5), max_size=12).map("".join)


@given(TEXTS, st.lists(st.integers(0, 400), max_size=20))
def test_cutting_the_text_anywhere_changes_nothing(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]

    assert parse(*(text[a:b] for a, b in itertools.pairwise(edges))) == parse(text) == parse(*text)


@given(TEXTS)
def test_without_a_call_every_character_stays(text: str) -> None:
    found = parse(text)

    if not found.calls:
        assert found.text == text
