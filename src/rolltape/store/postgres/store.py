"""The store on a server: a writer with one connection, a reader with another."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import psycopg

from rolltape.errors import StoreError
from rolltape.store.postgres import schema
from rolltape.store.postgres.session import Session, connect, place, worded
from rolltape.store.postgres.writer import Writer
from rolltape.store.tables.connection import Connection
from rolltape.store.tables.grouping import Operation
from rolltape.store.tables.store import TableStore

T = TypeVar("T")


class PostgresStore(TableStore):
    """Sink, source and lineage store in a PostgreSQL database; `store.CaptureStore` in full, for any number of nodes.

    `dsn` is a connection string; the tables are made at the first use, in the schema `rolltape`. `texts` False keeps
    neither requests nor output items. `settle_seconds` is how long a freeze waits for calls in flight. Raises
    `StoreError` when the server cannot be reached, would lose what it commits, or holds a newer schema.
    """

    def __init__(self, dsn: str, *, texts: bool = True, settle_seconds: float = 5.0) -> None:
        super().__init__(texts=texts, settle_seconds=settle_seconds)
        self._dsn = dsn
        schema.prepare(dsn)
        self._writer = Writer(partial(connect, dsn, writing=True), self._shelf.lineages.forget)
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="rolltape-reader")
        self._reader: Session | None = None
        self._closed = False

    async def close(self) -> None:
        """Write what is queued and release everything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._readers.shutdown()
        if self._reader is not None:
            self._reader.close()
        self._writer.close()

    async def _write(
        self, key: str, operation: Operation, amends: Operation | None = None, call: str | None = None
    ) -> Any:
        return await self._writer.waiting.submit(operation, amends=amends, key=key, call=call)

    def _write_lazily(self, key: str, operation: Operation) -> None:
        self._writer.waiting.submit_lazily(operation, key=key)

    async def _read(self, operation: Callable[[Connection], T]) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._with_reader, operation)

    def _with_reader(self, operation: Callable[[Connection], T]) -> T:
        """A connection that was lost meanwhile is replaced once: a read may be asked again."""
        fresh = self._reader is None
        try:
            if self._reader is None:
                self._reader = connect(self._dsn, writing=False)
            return operation(self._reader)
        except psycopg.Error as error:
            if self._reader is not None and self._reader.lost:
                self._reader = None
                if not fresh:
                    return self._with_reader(operation)
            raise StoreError(f"cannot read {place(self._dsn)}: {worded(error)}") from error
