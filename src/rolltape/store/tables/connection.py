"""What the rules ask of a database: statements in the common part of the SQL dialects, with `?` for each value."""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises of a damaged file; its message may quote bytes that are no text."""


class Cursor(Protocol):
    """The rows of a statement, as tuples."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, slots=True)
class Change:
    """A statement that changes one row and answers nothing, with a `?` for each of `columns`, in their order.

    `many`: the same for many rows at once, from a relation `new` of these columns that stands where it says `{new}`;
    for databases that can. `replaces`: of those with the same last value, only the newest counts.
    """

    sql: str
    many: str
    columns: tuple[str, ...]
    replaces: bool = False


def insertion(table: str, columns: str) -> Change:
    """The change that adds a row with these columns."""
    names = tuple(columns.split(", "))
    into = f"INSERT INTO {table} ({columns})"
    each = f"{into} VALUES ({', '.join('?' * len(names))})"
    return Change(each, f"{into} SELECT {columns} FROM {{new}}", names)  # noqa: S608 - names of the tables' own


class Connection(Protocol):
    """A database within a transaction, or a reader outside of one.

    `row_lock` ends a SELECT whose row nobody else may change before the transaction ends; "" where the transaction
    holds everything anyhow. `begin_view` begins a transaction whose reads all see one state.
    """

    @property
    def row_lock(self) -> str: ...
    @property
    def begin_view(self) -> str: ...
    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...
    def change(self, change: Change, values: tuple[Any, ...], /) -> None:
        """Change a row before the next statement that is executed, and before the commit."""

    def learn(self, sql: str, parameters: tuple[Any, ...], row: tuple[Any, ...] | None, /) -> None:
        """The next answer to `sql` would be `row`, so nobody need ask for it; None: it has to be asked for again."""

    def draw(self, last_seq: int, /) -> int | None:
        """A number for a new entry of a locked rollout, above `last_seq`; None where its insertion draws it."""
