"""One connection to the server, as `store.tables` wants it; transactions are begun and ended by hand.

A commit is durable whatever the database's default is: `synchronous_commit` is switched on where it is off, and a
server that runs with `fsync = off` is refused. A node that vanishes in mid-transaction keeps its row locks for some
seconds only: its session ends when it is idle for that long, or when its machine no longer answers.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rolltape.errors import StoreError
from rolltape.store.tables.connection import Change, Cursor

SCHEMA = "rolltape"
_DRAW = b"SELECT nextval('entries_seq_seq') FROM generate_series(1, %s)"
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
_TYPES = {
    "bigint": "seq rollout base base_len n_prompt n_generation step_index common_prefix_len"
    " id version next_step n_entries generated_tokens last_seq",
    "smallint": "kind packed",
    "double precision": "begun_at updated_at",
    "text": "call_id delivery parent_call_id",
    "bytea": "ids log_probs experts header prompt_digest digest chain request output_items",
}
"""What the columns of changes are, so that arrays of their values can be told from each other."""
_TYPE_OF = {name: kind for kind, names in _TYPES.items() for name in names.split()}


class Session:
    """`tables.connection.Connection` on a server; for one thread at a time."""

    begin_view = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, connection: "psycopg.Connection[tuple[Any, ...]]", *, writing: bool) -> None:
        self._connection = connection
        self.row_lock = " FOR UPDATE" if writing else ""
        self._ahead = False
        self._known: dict[tuple[str, Sequence[Any]], Sequence[Any]] = {}
        self._owed: dict[Change, dict[Any, tuple[Any, ...]]] = {}
        self._drawn: deque[int] = deque()

    @property
    def lost(self) -> bool:
        """True when the connection is gone and a new one is needed."""
        return bool(self._connection.closed)

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        if self._known and (row := self._known.pop((sql, parameters), None)) is not None:
            return _Row(row)
        self._pay()
        return self._send(_spelled(sql), parameters)

    def change(self, change: Change, values: tuple[Any, ...], /) -> None:
        if not self._ahead:
            self._send(_spelled(change.sql), values)
            return
        owed = self._owed.setdefault(change, {})
        owed[values[-1] if change.replaces else len(owed)] = values

    def learn(self, sql: str, parameters: tuple[Any, ...], row: tuple[Any, ...] | None, /) -> None:
        """Only for rows that this transaction has locked. Answers once, for whoever asks may change the row next."""
        if row is None:
            self._known.pop((sql, parameters), None)
        elif self._ahead:
            self._known[sql, parameters] = row

    def draw(self, last_seq: int, /) -> int:
        """The next of those that `stock` brought; a new one where another node has written past it."""
        if self._drawn and (seq := self._drawn.popleft()) > last_seq:
            return seq
        return int(self._send(_DRAW, (1,)).fetchall()[0][0])

    def stock(self, n: int) -> None:
        """Draw the numbers of `n` entries at once."""
        self._drawn.extend(seq for (seq,) in self._send(_DRAW, (n,)).fetchall())

    def forget(self) -> None:
        """What was learnt may have changed."""
        self._known.clear()

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Within, changes are collected and sent together, before the next statement that asks and at the end.

        A statement is waited for when its rows are asked for; an error comes then, or at the end.
        """
        self._ahead = True
        try:
            with self._connection.pipeline():
                yield
                self._pay()
        finally:
            self._ahead = False
            self._known, self._owed, self._drawn = {}, {}, deque()

    def _pay(self) -> None:
        """Send the changes that are owed, one statement for each kind. They commute: none is of a row of another."""
        owed, self._owed = self._owed, {}
        for change, rows in owed.items():
            if len(rows) == 1:  # an array costs more than the value in it
                self._send(_spelled(change.sql), *rows.values())
            else:
                self._send(_spelled_for_many(change), [list(column) for column in zip(*rows.values(), strict=True)])

    def _send(self, sql: bytes, parameters: Sequence[Any]) -> "psycopg.Cursor[tuple[Any, ...]]":
        return self._connection.execute(sql, parameters or None, binary=True)

    def commit(self) -> None:
        """Raises `StoreError` unless the server says that it has committed."""
        try:
            said = self._connection.execute(b"COMMIT").statusmessage
        except psycopg.Error as error:
            raise StoreError(f"not stored, or nobody knows: the commit was not confirmed: {worded(error)}") from error
        if said != "COMMIT":
            raise StoreError(f"not stored: the server answered {said} to a commit")

    def rollback(self) -> None:
        """Undo the transaction that is open, if any; a connection that cannot is closed."""
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
            _look_up_by_index(connection)
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


def _look_up_by_index(connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
    """A plan that was made while the tables were nearly empty, and is kept, must still do when they are large."""
    for way in (b"seqscan", b"hashjoin", b"mergejoin"):
        connection.execute(b"SET enable_%s = off" % way)


@cache
def _spelled_for_many(change: Change) -> bytes:
    arrays = ", ".join(f"%b::{_TYPE_OF[name]}[]" for name in change.columns)
    return change.many.format(new=f"unnest({arrays}) AS new({', '.join(change.columns)})").encode()


@cache
def _spelled(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()
