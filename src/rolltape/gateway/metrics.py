"""What the gateway counts, for Prometheus. One registry a gateway, so that several can live in one process."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rolltape.record import TokenEntry


class Metrics:
    """Counters of one gateway process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "rolltape_calls", "Model calls by protocol, outcome and whether they were captured",
            ["protocol", "outcome", "captured"], registry=self.registry,
        )  # fmt: skip
        self._faults = Counter(
            "rolltape_capture_faults", "Recordings that failed, by step", ["step"], registry=self.registry
        )
        self._marked = Counter(
            "rolltape_marked_entries", "Entries recorded with a named fault", ["fault"], registry=self.registry
        )
        self._limited = Counter(
            "rolltape_limited_calls", "Calls told to come again, by the bound they reached",
            ["bound"], registry=self.registry,
        )  # fmt: skip
        self._tokens = Counter("rolltape_sampled_tokens", "Tokens sampled in captured calls", registry=self.registry)
        self._seconds = Histogram("rolltape_call_seconds", "Duration of a call", ["protocol"], registry=self.registry)
        self._in_flight = Gauge("rolltape_calls_in_flight", "Calls being served", registry=self.registry)

    @contextmanager
    def in_flight(self, protocol: str) -> Iterator[None]:
        with self._in_flight.track_inprogress(), self._seconds.labels(protocol).time():
            yield

    def call_ended(self, protocol: str, outcome: str, *, captured: bool) -> None:
        self._calls.labels(protocol, outcome, str(captured).lower()).inc()

    def recorded(self, entry: TokenEntry) -> None:
        self._tokens.inc(len(entry.generation_token_ids))
        for fault in entry.faults:
            self._marked.labels(fault.partition(":")[0]).inc()

    def limited(self, bound: str) -> None:
        self._limited.labels(bound).inc()

    def capture_fault(self, step: str) -> None:
        self._faults.labels(step).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)
