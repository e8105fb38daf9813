"""The store in a directory: one writer thread and a few readers, each with a connection of its own."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rolltape.errors import StoreError
from rolltape.store.contract import Swept
from rolltape.store.sqlite import schema
from rolltape.store.sqlite.writer import Writer
from rolltape.store.tables import retention
from rolltape.store.tables.connection import DAMAGED, Connection
from rolltape.store.tables.grouping import Operation
from rolltape.store.tables.store import TableStore

T = TypeVar("T")

_READERS = 4


class TokenCaptureStore(TableStore):
    """Sink, source and lineage store in one directory; `store.CaptureStore` in full.

    `texts` False keeps neither requests nor output items. `settle_seconds` is how long a freeze waits for calls in
    flight. Several processes of one machine may open the same directory. Raises `StoreError` when it cannot be opened.
    """

    def __init__(self, dir: str | Path, *, texts: bool = True, settle_seconds: float = 5.0) -> None:
        self._file = schema.prepare(Path(dir))
        super().__init__(texts=texts, settle_seconds=settle_seconds)
        self._writer = Writer(schema.connect(self._file), self._shelf.lineages.forget)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="rolltape-reader")
        self._idle: list[schema.Connection] = []
        self._closed = False

    async def close(self) -> None:
        """Write what is queued and release everything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._readers.shutdown()
        for connection in self._idle:
            connection.close()
        self._writer.close()

    def _swept(self, db: Connection, rule: retention.Rule) -> Swept:
        swept = super()._swept(db, rule)
        self._writer.swept = True
        return swept

    async def _write(
        self, key: str, operation: Operation, amends: Operation | None = None, call: str | None = None
    ) -> Any:
        return await self._writer.waiting.submit(operation, amends=amends)

    def _write_lazily(self, key: str, operation: Operation) -> None:
        self._writer.waiting.submit_lazily(operation)

    async def _read(self, operation: Callable[[Connection], T]) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._with_reader, operation)

    def _with_reader(self, operation: Callable[[Connection], T]) -> T:
        try:
            with self._reader() as connection:
                return operation(connection)
        except DAMAGED as error:
            raise StoreError(
                f"cannot read {self._file}: {error}", hint="`rolltape verify` says what is damaged"
            ) from error

    @contextmanager
    def _reader(self) -> Iterator[schema.Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = schema.connect(self._file, read_only=True)
        try:
            yield connection
        finally:
            self._idle.append(connection)
