"""The writer: one thread, one connection, one commit for everything that waits (group commit).

It takes all queued jobs, runs them in one transaction, and only after the commit resolves what the callers await. Jobs
are ordered by rollout, so every process locks rows in one order and none waits for another in a circle.

What the jobs of a batch ask is asked at once (`foresight`), and what they change is sent at once, so a batch costs few
round trips however large it is. Jobs first run without savepoints. When one of them fails,
the transaction is undone and all run again, each in a savepoint of its own, so that the one which failed undoes only
itself. A transaction that did not come to its commit (a lost connection, a deadlock) is run again; one whose commit was
not confirmed fails for each of its callers, and is marked as soon as the server answers. Nothing is acknowledged that
the server has not confirmed.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from rolltape.errors import StoreError
from rolltape.store.postgres.foresight import foresee
from rolltape.store.postgres.session import Session, worded
from rolltape.store.tables import rollouts
from rolltape.store.tables.grouping import Job, Operation, Waiting, resolve

_LARGEST_BATCH = 256
_ATTEMPTS = 4
_NOT_THE_JOBS_OWN = ("08", "40", "53", "57", "58")
"""Classes of SQLSTATE: connection, transaction rolled back, resources, operator, system."""


class _JobFailed(Exception):
    """A job failed on its own account: all have to be run again in savepoints."""


class Writer:
    """Runs operations durably. `opened` gives a session; `forget` is called when memory may hold what is not stored."""

    def __init__(self, opened: Callable[[], Session], forget: Callable[[], None]) -> None:
        self.waiting = Waiting()
        self._opened = opened
        self._session: Session | None = opened()
        self._forget = forget
        self.batches = 0
        """How many transactions were committed."""
        self._thread = threading.Thread(target=self._run, name="rolltape-writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Commit what is queued, end the thread. Blocks; idempotent."""
        self.waiting.close()
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            jobs, closing = self.waiting.take()
            jobs.sort(key=lambda job: job.key)
            for start in range(0, len(jobs), _LARGEST_BATCH):
                self._commit(jobs[start : start + _LARGEST_BATCH])
        if self._session is not None:
            self._session.close()

    def _commit(self, batch: Sequence[Job]) -> None:
        try:
            results = self._committed(batch)
            self.batches += 1
        except Exception as error:
            self.waiting.owe(batch)
            results = [_as_store_error(error) for _ in batch]
        resolve(zip(batch, results, strict=True))

    def _committed(self, batch: Sequence[Job]) -> list[Any]:
        """Results in order, errors of single jobs among them. Raises what kept the batch from its commit."""
        apart = False
        for left in reversed(range(_ATTEMPTS)):
            session = self._connected()
            try:
                return self._transaction(session, batch, apart=apart)
            except _JobFailed:
                apart = True
            except psycopg.Error:
                if not left:
                    raise
        raise StoreError("not stored: the transaction was broken off again and again")

    def _transaction(self, session: Session, batch: Sequence[Job], *, apart: bool) -> list[Any]:
        try:
            if apart:
                session.execute("BEGIN")
                results = [self._alone(session, job) for job in batch]
            else:
                with session.ahead():
                    session.execute("BEGIN")
                    foresee(session, batch)
                    results = [_together(session, job) for job in batch]
            session.commit()
        except BaseException as error:
            session.rollback()
            self._forget()
            if not apart and isinstance(error, Exception) and not _of_all(session, error):
                raise _JobFailed from error
            raise
        return results

    def _alone(self, session: Session, job: Job) -> Any:
        """The job's result; or its error, with its writes undone and its amends made."""
        try:
            return _in_savepoint(session, job.operation)
        except Exception as error:
            if _shared(session, error):
                raise
            if job.amends is not None and not isinstance(error, StoreError):
                _amend(session, job, job.amends)
            return _as_store_error(error)

    def _connected(self) -> Session:
        if self._session is None or self._session.lost:
            self._session = None
            try:
                self._session = self._opened()
            except psycopg.Error as error:
                raise StoreError(f"not stored: there is no connection: {worded(error)}") from error
        return self._session


def _of_all(session: Session, error: Exception) -> bool:
    """True where running the jobs apart would help none of them."""
    return isinstance(error, StoreError) or _shared(session, error)


def _together(session: Session, job: Job) -> Any:
    """The job's result, or its refusal, which has written nothing."""
    if not job.key:
        session.forget()
    try:
        return job.operation(session)
    except (StoreError, psycopg.Error) as error:
        if isinstance(error, StoreError):
            return error
        raise
    except Exception as error:
        raise _JobFailed from error


def _in_savepoint(session: Session, operation: Operation) -> Any:
    session.execute("SAVEPOINT job")
    try:
        result = operation(session)
    except Exception:
        if not session.lost:
            session.execute("ROLLBACK TO job")
            session.execute("RELEASE job")
        raise
    session.execute("RELEASE job")
    return result


def _amend(session: Session, job: Job, amends: Operation) -> None:
    """Make the job's amends; where the server cannot hold what they say, say less: a mark is never lost."""
    try:
        _in_savepoint(session, amends)
    except Exception as error:
        if _shared(session, error):
            raise
        if "\0" not in job.key:
            rollouts.mark_incomplete(session, job.key, "", "a call with an id that PostgreSQL cannot hold")


def _shared(session: Session, error: BaseException) -> bool:
    """True for an error that is not the job's own: the next one would meet it as well."""
    if session.lost:
        return True
    return isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] in _NOT_THE_JOBS_OWN


def _as_store_error(error: BaseException) -> StoreError:
    if isinstance(error, StoreError):
        return error
    what = "the server failed" if isinstance(error, psycopg.Error) else type(error).__name__
    wrapped = StoreError(f"not stored: {what}: {worded(error)}")
    wrapped.__cause__ = error
    return wrapped
