"""Server-sent events for the protocols; the parser and writer themselves stand below, where engines reach them too."""

from rolltape.sse import SseEvent, SseParser, frame

__all__ = ["SseEvent", "SseParser", "frame"]
