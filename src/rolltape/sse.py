"""Server-sent events: an incremental parser and a frame writer. Pure.

Strategy: bytes stay bytes. Lines are cut from the reads as they come, a line that is not finished is kept as a list of
parts (so a line of any length costs linear time), and nothing is decoded before its event is whole: a character split
between two reads cannot be damaged. `data` is bytes, which JSON decoders take as they are.

The rules are those of the WHATWG specification, with one addition: an event that the stream's end cut off is handed
out by `finish`, marked `truncated`, instead of being dropped in silence.
"""

from dataclasses import dataclass, field

BOM = b"\xef\xbb\xbf"
CONTENT_TYPE = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `data` lines are joined with a newline; `name` is the `event` field, "" where there was none.

    `truncated`: the stream ended before the empty line that ends an event; the last line of `data` may be cut.
    """

    data: bytes
    name: str = ""
    truncated: bool = False


@dataclass(slots=True)
class SseParser:
    """Feed it reads, of any size and split anywhere; it gives the events that they complete."""

    _parts: list[bytes] = field(default_factory=list)
    _data: list[bytes] = field(default_factory=list)
    _name: str = ""
    _after_cr: bool = False
    _at_start: bool = True

    def feed(self, read: bytes) -> list[SseEvent]:
        """The events that `read` completes, in order."""
        if self._after_cr and read:
            read = read.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr |= read.endswith(b"\r")
        events = []
        for piece in read.splitlines(keepends=True):
            if not piece.endswith((b"\n", b"\r")):
                self._parts.append(piece)
                continue
            event = self._line(self._whole_line(piece.rstrip(b"\r\n")))
            if event is not None:
                events.append(event)
        return events

    def finish(self) -> SseEvent | None:
        """What the end of the stream cut off, or None when it ended cleanly."""
        if self._parts:
            self._line(self._whole_line(b""))
        event = SseEvent(b"\n".join(self._data), self._name, truncated=True) if self._data else None
        self._data, self._name = [], ""
        return event

    def _whole_line(self, end: bytes) -> bytes:
        line = b"".join([*self._parts, end]) if self._parts else end
        self._parts = []
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        return line

    def _line(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(b"\n".join(self._data), self._name) if self._data else None
        self._data, self._name = [], ""
        return event


def frame(data: bytes, name: str = "") -> bytes:
    """One event as bytes. Line ends in `data` become further `data` lines, since a raw one would end the field."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    head = f"event: {name}\n".encode() if name else b""
    return head + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"
