"""One connection to the server, as `store.tables` wants it; transactions are begun and ended by hand.

A commit is durable whatever the database's default is: `synchronous_commit` is switched on where it is off, and a
server that runs with `fsync = off` is refused. A node that vanishes in mid-transaction keeps its row locks for some
seconds only: its session ends when it is idle for that long, or when its machine no longer answers.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rolltape.errors import StoreError
from rolltape.store.tables.connection import Cursor

SCHEMA = "rolltape"
STALLED_SECONDS = 10
"""After this long within a transaction and without a statement, the server ends a session and frees its locks."""
_SETTINGS = {
    "application_name": "rolltape",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


class Session:
    """`tables.connection.Connection` on a server; for one thread at a time."""

    begin_view = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, connection: "psycopg.Connection[tuple[Any, ...]]", *, writing: bool) -> None:
        self._connection = connection
        self.row_lock = " FOR UPDATE" if writing else ""
        self._foreseen: dict[tuple[str, Sequence[Any]], Sequence[Any]] = {}

    @property
    def lost(self) -> bool:
        """True when the connection is gone and a new one is needed."""
        return bool(self._connection.closed)

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        if self._foreseen and (row := self._foreseen.pop((sql, parameters), None)) is not None:
            return _Row(row)
        return self._connection.execute(_spelled(sql), parameters or None, binary=True)

    def foresee(self, sql: str, rows: Iterable[tuple[Sequence[Any], Sequence[Any]]]) -> None:
        """Answer `sql` from these (parameters, row), each once, until the transaction ends.

        Only for rows that this transaction has locked, and that it changes by statements which come after `sql`.
        """
        self._foreseen = {(sql, parameters): row for parameters, row in rows}

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Within, a statement is waited for when its rows are asked for; an error comes then, or at the end."""
        with self._connection.pipeline():
            yield

    def commit(self) -> None:
        """Raises `StoreError` unless the server says that it has committed."""
        self._foreseen = {}
        try:
            said = self._connection.execute(b"COMMIT").statusmessage
        except psycopg.Error as error:
            raise StoreError(f"not stored, or nobody knows: the commit was not confirmed: {worded(error)}") from error
        if said != "COMMIT":
            raise StoreError(f"not stored: the server answered {said} to a commit")

    def rollback(self) -> None:
        """Undo the transaction that is open, if any; a connection that cannot is closed."""
        self._foreseen = {}
        try:
            self._connection.rollback()
        except psycopg.Error:
            self._connection.close()

    def close(self) -> None:
        self._connection.close()


class _Row:
    """A cursor over one row that is here already."""

    def __init__(self, row: Sequence[Any]) -> None:
        self._row = row

    def fetchone(self) -> Any:
        return self._row

    def fetchall(self) -> list[Any]:
        return [self._row]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())


def connect(dsn: str, *, writing: bool) -> Session:
    """A session, with the tables first in its search path. Raises `psycopg.Error` when there is no server.

    Raises `StoreError` for a server that loses what it has committed.
    """
    connection = psycopg.connect(make_conninfo("", **{**_SETTINGS, **parsed(dsn)}), autocommit=True)
    try:
        connection.execute(f"SET search_path = {SCHEMA}".encode())
        connection.execute(b"SET client_encoding = 'UTF8'")
        if writing:
            connection.execute(f"SET idle_in_transaction_session_timeout = '{STALLED_SECONDS}s'".encode())
            _insist_on_durability(connection)
    except BaseException:
        connection.close()
        raise
    return Session(connection, writing=writing)


def parsed(dsn: str) -> dict[str, Any]:
    """The parameters of a connection string. Raises `StoreError`, which never quotes it: it may hold a password."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.Error:
        raise StoreError(
            "this is no connection string of PostgreSQL", hint="postgresql://USER@HOST:5432/DATABASE"
        ) from None


def place(dsn: str) -> str:
    """Where a connection string leads, without its secrets."""
    given = parsed(dsn)
    return f"PostgreSQL at {given.get('host', 'the local socket')}:{given.get('port', 5432)}/{given.get('dbname', '')}"


def worded(error: BaseException) -> str:
    """The first line of what the driver or the server says."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _insist_on_durability(connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
    row = connection.execute(b"SELECT current_setting('fsync'), current_setting('synchronous_commit')").fetchone()
    assert row is not None
    if row[0] != "on":
        raise StoreError("this PostgreSQL server runs with fsync = off: it may lose what it has committed")
    if row[1] == "off":
        connection.execute(b"SET synchronous_commit = on")


@cache
def _spelled(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()
