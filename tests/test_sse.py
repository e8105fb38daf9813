"""The event-stream parser: the same events however the transport cuts them, whatever the line ends and lengths."""

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.sse import SseEvent, SseParser, frame


def parse(*reads: bytes) -> list[SseEvent]:
    parser = SseParser()
    events = [event for read in reads for event in parser.feed(read)]
    last = parser.finish()
    return events if last is None else [*events, last]


def test_a_character_and_an_event_border_split_between_reads_lose_nothing() -> None:
    reads = [
        bytes.fromhex(
            "646174613a7b2263686f69636573223a5b7b22746f6b656e5f696473223a5b37375d2c2264656c7461223a7b22636f6e74656e74223a22e58c"
        ),
        bytes.fromhex("97227d7d5d7d0d0a0d"),
        bytes.fromhex("0a646174613a205b444f4e455d0d0a0d0a"),
    ]
    first, done = parse(*reads)
    choice = msgspec.json.decode(first.data)["choices"][0]
    assert (choice["delta"]["content"], choice["token_ids"]) == ("北", [77])
    assert done == SseEvent(b"[DONE]")


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_all_three_line_ends_part_lines(end: bytes) -> None:
    stream = end.join([b": hello", b"event: ping", b"data:1", b"data: 2", b"", b"", b"data:  3", b"", b""])
    assert parse(stream) == [SseEvent(b"1\n2", "ping"), SseEvent(b" 3")]


def test_a_line_feed_that_starts_a_read_is_dropped_only_after_a_carriage_return_that_ended_one() -> None:
    assert parse(b"data: a\rdata: b", b"\n\n") == [SseEvent(b"a\nb")]
    assert parse(b"data: a\r", b"\n\n") == [SseEvent(b"a")]
    assert parse(b"data: a\r", b"", b"\n", b"\n") == [SseEvent(b"a")]


def test_comments_unknown_fields_and_events_without_data_give_nothing() -> None:
    assert parse(b": keep-alive\n\nid: 7\nretry: 3\n\nevent: ping\n\nnonsense\n\n") == []


def test_the_name_of_an_event_without_data_does_not_stick_to_the_next() -> None:
    assert parse(b"event: ping\n\ndata: x\n\n") == [SseEvent(b"x")]


@pytest.mark.parametrize("tail", [b'data: {"a":', b'data: {"a":\n', b'event: x\ndata: {"a":'])
def test_an_event_cut_off_by_the_end_is_told_and_marked(tail: bytes) -> None:
    whole, cut = parse(b"data: 1\n\n" + tail)
    assert not whole.truncated
    assert (cut.data, cut.truncated) == (b'{"a":', True)


def test_a_byte_order_mark_at_the_start_is_no_data() -> None:
    assert parse(b"\xef\xbb", b"\xbfdata: x\n\n") == [SseEvent(b"x")]


@pytest.mark.parametrize("ids", [60_000, 800_000])
def test_a_line_with_all_prompt_ids_has_no_length_limit(ids: int) -> None:
    body = msgspec.json.encode({"prompt_token_ids": list(range(100, 100 + ids))})
    stream = frame(body) + frame(b'{"token_ids":[5,2]}')
    reads = [stream[at : at + 16_384] for at in range(0, len(stream), 16_384)]
    first, second = parse(*reads)
    assert len(msgspec.json.decode(first.data)["prompt_token_ids"]) == ids
    assert msgspec.json.decode(second.data)["token_ids"] == [5, 2]


def test_a_long_line_in_small_reads_costs_linear_time() -> None:
    parser, read = SseParser(), b"x" * 100
    start = time.process_time()
    parser.feed(b"data: ")
    for _ in range(50_000):
        parser.feed(read)
    (event,) = parser.feed(b"\n\n")
    assert len(event.data) == 5_000_000
    assert time.process_time() - start < 2, "copying what came before at each read would take minutes"


def test_a_frame_with_line_ends_in_its_data_is_read_back_whole() -> None:
    assert parse(frame(b"a\nb\r\nc\rd", "note")) == [SseEvent(b"a\nb\nc\nd", "note")]


lines = st.sampled_from(
    [
        b"data: x",
        b"data:y",
        b"data",
        b"data: \xe5\x8c\x97",
        b"data: \xf0\x9f\x98\x80",
        b"event: e",
        b": c",
        b"",
        b"",
        b"id:1",
    ]
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=20), st.binary(max_size=6), st.data()
)
def test_any_split_gives_the_same_events(parts: list[tuple[bytes, bytes]], tail: bytes, data: st.DataObject) -> None:
    stream = b"".join(line + end for line, end in parts) + tail
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*reads) == parse(stream)
    assert parse(*(stream[at : at + 1] for at in range(len(stream)))) == parse(stream)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(stream: bytes) -> None:
    parse(stream)
