"""The writer: one thread, one connection, one sync for everything that waits (group commit).

It takes all queued jobs, opens one transaction, runs each job in a savepoint of its own, commits once and only then
resolves what the callers await. A job that fails undoes only itself. Where SQLite gives up the whole transaction for
one job's sake (a full disk), every job is run again in a transaction of its own. If a commit fails, each of its jobs
fails: nothing is acknowledged that is not on the disk.

Checkpoints run when nothing waits, or when the log has grown large; a commit never pays for one.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rolltape.errors import StoreError
from rolltape.store.sqlite import schema
from rolltape.store.tables.connection import DAMAGED
from rolltape.store.tables.grouping import Job, Operation, Waiting, resolve

_LARGEST_BATCH = 1024
_PAGES_A_JOB = 4
"""About how many pages a job rewrites, apart from those it adds."""
_IDLE_CHECKPOINT = 1_000
_FORCED_CHECKPOINT = 16_000
_PAGES_GIVEN_BACK = 4_096
"""In pages of the log: from 4 MB it is folded into the file when nothing waits, from 64 MB at once."""


class _TransactionLost(Exception):
    """SQLite rolled back more than the failing job."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Writer:
    """Runs operations durably on `db`, which it then owns.

    `forget` is called when memory may hold what the file does not.
    """

    def __init__(self, db: schema.Connection, forget: Callable[[], None]) -> None:
        self.waiting = Waiting()
        self._db = db
        self._checkpointed_pages = self._pages()
        self._checkpointed_jobs = 0
        self._file = str(db.execute("PRAGMA database_list").fetchone()[2])
        self._opened = _identity(self._file)
        self._forget = forget
        self.batches = 0
        """How many transactions were committed: never more than one sync each."""
        self.jobs = 0
        self.swept = False
        """Pages are free, and the log holds them as they were before. Set by the writer's own operations."""
        self._thread = threading.Thread(target=self._run, name="rolltape-writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Commit what is queued, fold the log into the file, end the thread. Blocks; idempotent."""
        self.waiting.close()
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            batch, closing = self.waiting.take()
            for start in range(0, len(batch), _LARGEST_BATCH):
                self._commit(batch[start : start + _LARGEST_BATCH])
            self._checkpoint(close=closing)
        self._db.close()

    def _commit(self, batch: Sequence[Job]) -> None:
        try:
            results = self._transaction(batch)
        except _TransactionLost as lost:
            results = self._one_by_one(batch, lost)
        self.jobs += len(batch)
        resolve(zip(batch, results, strict=True))

    def _transaction(self, batch: Sequence[Job]) -> list[Any]:
        """Results in order, errors among them. Raises `_TransactionLost` when the jobs have to be run apart."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            results = [self._attempt(job) for job in batch]
            self._db.execute("COMMIT")
            self._in_place()
        except (*DAMAGED, StoreError) as error:
            self._abandon()
            self.waiting.owe(batch)
            return [_as_store_error(error) for _ in batch]
        except BaseException:
            self._abandon()
            raise
        self.batches += 1
        return results

    def _in_place(self) -> None:
        """SQLite goes on writing to files that were deleted under it; what it says is committed there is lost."""
        try:
            held = _identity(self._file) == self._opened and os.path.exists(f"{self._file}-wal")
        except OSError:
            held = False
        if not held:
            raise StoreError(f"not stored: {self._file} was removed or replaced while it was open")

    def _attempt(self, job: Job) -> Any:
        """The job's result; or its error, with its writes undone and its amends made."""
        try:
            return self._in_savepoint(job.operation)
        except _TransactionLost:
            raise
        except Exception as error:
            if job.amends is not None and not isinstance(error, StoreError):
                try:
                    self._in_savepoint(job.amends)
                except sqlite3.Error:
                    self.waiting.owe([job])
            return _as_store_error(error)

    def _in_savepoint(self, operation: Operation) -> Any:
        self._db.execute("SAVEPOINT job")
        try:
            result = operation(self._db)
        except BaseException as error:
            if not self._db.in_transaction:
                raise _TransactionLost(error) from error
            self._db.execute("ROLLBACK TO job")
            self._db.execute("RELEASE job")
            raise
        self._db.execute("RELEASE job")
        return result

    def _one_by_one(self, batch: Sequence[Job], lost: _TransactionLost) -> list[Any]:
        """Each job in its own transaction, so that the one which broke the batch harms only itself."""
        if len(batch) == 1:
            self.waiting.owe(batch)
            return [_as_store_error(lost.cause)]
        results: list[Any] = []
        for job in batch:
            try:
                results += self._transaction([job])
            except _TransactionLost as again:
                results += self._one_by_one([job], again)
        return results

    def _abandon(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._forget()

    def _checkpoint(self, *, close: bool) -> None:
        """Copy the log into the file. What cannot be copied now (a reader, a full disk) stays safe in the log."""
        try:
            pages = self._pages()
            log = pages - self._checkpointed_pages + _PAGES_A_JOB * (self.jobs - self._checkpointed_jobs)
            if self.swept and (close or self.waiting.empty):
                self.swept = not self._gave_back()
            if close or log > (_IDLE_CHECKPOINT if self.waiting.empty else _FORCED_CHECKPOINT):
                self._db.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if close else 'PASSIVE'})").fetchall()
                self._checkpointed_pages, self._checkpointed_jobs = pages, self.jobs
        except sqlite3.Error:
            return

    def _gave_back(self) -> bool:
        """Return free pages to the disk and empty the log; False while somebody needs it. Waits for nobody."""
        self._db.execute("PRAGMA busy_timeout=0")
        try:
            self._db.executescript(f"PRAGMA incremental_vacuum({_PAGES_GIVEN_BACK})")
            busy, *_ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._db.execute(f"PRAGMA busy_timeout={int(schema.BUSY_SECONDS * 1000)}")
        return not busy

    def _pages(self) -> int:
        return int(self._db.execute("PRAGMA page_count").fetchone()[0])


def _identity(file: str) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_dev, found.st_ino


def _as_store_error(error: BaseException) -> StoreError:
    if isinstance(error, StoreError):
        return error
    what = "the disk or the file failed" if isinstance(error, sqlite3.Error) else type(error).__name__
    wrapped = StoreError(f"not stored: {what}: {error}")
    wrapped.__cause__ = error
    return wrapped
