"""Whatever is done to it in whatever order, the SQLite store says what the reference in memory says."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rolltape.errors import StoreError
from rolltape.record import Delivery, TokenCaptureSnapshot
from rolltape.store import CaptureStore, TokenCaptureStore
from rolltape.store.memory import MemoryStore
from rolltape.testing.contracts import assert_same, entry

rollout_ids = st.sampled_from(["R", "S"])
call_ids = st.sampled_from(["k1", "k2", "k3", "k4"])
ids = st.lists(st.integers(0, 1), max_size=5)
FILLED = ("step_index", "parent_call_id", "common_prefix_len", "prompt_digest")


class Stores(RuleBasedStateMachine):
    """Both stores take every step; both must answer alike. A reopened file is the same store."""

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.memory = MemoryStore(settle_seconds=0)
        self.sqlite = self.make()
        self.seen: dict[str, tuple[TokenCaptureSnapshot, TokenCaptureSnapshot]] = {}

    def make(self) -> TokenCaptureStore:
        return TokenCaptureStore(Path(self.folder.name), settle_seconds=0)

    def both(self, doing: Callable[[CaptureStore], Awaitable[Any]]) -> tuple[Any, Any]:
        """What each store answers; the same kind of error on both is an answer as well."""
        answers = []
        for store in (self.memory, self.sqlite):
            try:
                answers.append(self.loop.run_until_complete(doing(store)))  # type: ignore[arg-type]
            except StoreError as error:
                answers.append(type(error))
        return answers[0], answers[1]

    @rule(rollout_id=rollout_ids, call_id=call_ids)
    def begin(self, rollout_id: str, call_id: str) -> None:
        a, b = self.both(lambda store: store.begin_call(rollout_id, call_id))
        assert a == b

    @rule(rollout_id=rollout_ids, call_id=call_ids, prompt=ids, generation=ids)
    def put(self, rollout_id: str, call_id: str, prompt: list[int], generation: list[int]) -> None:
        one = entry(call_id, prompt, generation, rollout_id=rollout_id)
        a, b = self.both(lambda store: store.put(one))
        assert a == b

    @rule(rollout_id=rollout_ids, call_id=call_ids, delivery=st.sampled_from(list(Delivery)))
    def settle(self, rollout_id: str, call_id: str, delivery: Delivery) -> None:
        self.both(lambda store: store.settle_delivery(rollout_id, call_id, delivery))

    @rule(rollout_id=rollout_ids, call_id=call_ids)
    def mark(self, rollout_id: str, call_id: str) -> None:
        self.both(lambda store: store.mark_incomplete(rollout_id, call_id))

    @rule(rollout_id=rollout_ids)
    def create(self, rollout_id: str) -> None:
        a, b = self.both(lambda store: store.create_rollout(rollout_id, {"task": 1}))
        assert a == b

    @rule(rollout_id=rollout_ids, call_id=call_ids, sequence=ids)
    def record(self, rollout_id: str, call_id: str, sequence: list[int]) -> None:
        a, b = self.both(lambda store: store.record(rollout_id, f"foreign-{call_id}", sequence))  # type: ignore[arg-type]
        assert a == b

    @rule(rollout_id=rollout_ids, prompt=ids)
    def resolve(self, rollout_id: str, prompt: list[int]) -> None:
        a, b = self.both(lambda store: store.resolve(rollout_id, prompt))  # type: ignore[arg-type]
        assert a == b

    @rule(rollout_id=rollout_ids)
    def freeze(self, rollout_id: str) -> None:
        a, b = self.both(lambda store: store.freeze(rollout_id))
        if isinstance(a, TokenCaptureSnapshot):
            self.compare(a, b)
            self.seen[rollout_id] = a, b
        else:
            assert a == b

    @rule(rollout_id=rollout_ids)
    def drop(self, rollout_id: str) -> None:
        """Of the snapshot seen last, current or not."""
        if rollout_id in self.seen:
            drops = zip((self.memory, self.sqlite), self.seen[rollout_id], strict=True)
            a, b = (
                self.loop.run_until_complete(store.drop(rollout_id, snapshot_id=s.snapshot_id, version=s.version))
                for store, s in drops
            )
            assert a == b

    @rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.sqlite.close())
        self.sqlite = self.make()

    @rule(rollout_id=rollout_ids)
    def read(self, rollout_id: str) -> None:
        self.both(lambda store: store.mark_incomplete("flush"))
        a, b = self.both(lambda store: store.read(rollout_id, texts=True))
        assert (a is None) == (b is None)
        if a is not None:
            self.compare(a, b)

    @rule()
    def list(self) -> None:
        a, b = self.both(lambda store: store.rollouts())
        told = ["rollout_id", "n_entries", "n_open_calls", "generated_tokens", "frozen", "incomplete", "version"]
        for one, other in zip(a, b, strict=True):
            assert [getattr(one, name) for name in told] == [getattr(other, name) for name in told]
            assert (one.retired_at is None) == (other.retired_at is None)

    def compare(self, a: TokenCaptureSnapshot, b: TokenCaptureSnapshot) -> None:
        assert (a.version, a.incomplete, a.outcome) == (b.version, b.incomplete, b.outcome)
        assert sorted(a.incomplete_reasons) == sorted(b.incomplete_reasons)
        for one, other in zip(a.entries, b.entries, strict=True):
            assert_same(other, one)
            assert [getattr(one, name) for name in FILLED] == [getattr(other, name) for name in FILLED]

    def teardown(self) -> None:
        self.loop.run_until_complete(self.sqlite.close())
        self.loop.close()
        self.folder.cleanup()


TestBothStoresAgree = Stores.TestCase
TestBothStoresAgree.settings = settings(
    max_examples=8, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
