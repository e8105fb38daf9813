"""The file: its tables, its settings, and how a directory becomes a store.

One SQLite file a directory, in WAL mode with `synchronous=FULL`: a commit is one sync of the log, and readers of any
process never wait for it. Checkpoints are left to the writer (`writer`), so that no commit pays for one. Pages have
4 KiB, the block of most disks: smaller ones waste less in the file but write more of the log a commit. What is deleted
is overwritten with zeros, and free pages can be given back to the disk a few at a time.

A change of the tables is a new element of `MIGRATIONS`, never an edit of an old one.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolltape.errors import StoreError
from rolltape.store.tables.connection import DAMAGED, Change

FILE_NAME = "rolltape.db"
BUSY_SECONDS = 10.0
"""How long a writer waits for the write lock of another process."""
APPLICATION_ID = 0x726F6C6C

_FIRST = """
CREATE TABLE rollouts (
    id               INTEGER PRIMARY KEY,
    rollout_id       TEXT NOT NULL UNIQUE,
    created_at       REAL NOT NULL,
    updated_at       REAL NOT NULL,
    labels           TEXT,                        -- JSON object
    outcome          TEXT,                        -- JSON object {reward, ending, labels}; NULL = none told
    frozen           REAL NOT NULL DEFAULT 0,     -- when it was frozen; 0 = it is not
    retired_at       REAL,                        -- NULL = not retired
    swept_at         REAL,                        -- when retention removed the entries; the row stays as a fence
    version          INTEGER NOT NULL DEFAULT 1,  -- advances with every entry and every new mark
    next_step        INTEGER NOT NULL DEFAULT 0,
    n_entries        INTEGER NOT NULL DEFAULT 0,
    generated_tokens INTEGER NOT NULL DEFAULT 0,
    last_seq         INTEGER NOT NULL DEFAULT 0,  -- newest row of `entries`: what other processes catch up to
    chain            BLOB NOT NULL DEFAULT x''    -- SHA-256(previous chain || entry digest), entries in order of seq
);
CREATE TABLE intents (
    rollout    INTEGER NOT NULL,
    call_id    TEXT NOT NULL,
    step_index INTEGER NOT NULL,
    begun_at   REAL NOT NULL,
    PRIMARY KEY (rollout, call_id)
) WITHOUT ROWID;
CREATE TABLE entries (
    seq               INTEGER PRIMARY KEY,
    rollout           INTEGER NOT NULL,
    kind              INTEGER NOT NULL,           -- 0 token entry, 1 known sequence only (LineageStore.record)
    call_id           TEXT NOT NULL,
    base              INTEGER,                    -- seq of the entry whose sequence starts this prompt; NULL = none
    base_len          INTEGER NOT NULL,           -- how many ids of that sequence
    n_prompt          INTEGER NOT NULL,
    n_generation      INTEGER NOT NULL,
    packed            INTEGER NOT NULL,           -- bits: 1 ids, 2 log_probs, 4 experts are zstd
    ids               BLOB NOT NULL,              -- int32 LE: prompt[base_len:], then the generation
    log_probs         BLOB NOT NULL,              -- float32 LE
    experts           BLOB,                       -- routed_experts, C order
    header            BLOB NOT NULL,              -- canonical JSON of the other fields, defaults left out
    delivery          TEXT NOT NULL,
    step_index        INTEGER,
    parent_call_id    TEXT,
    common_prefix_len INTEGER,
    prompt_digest     BLOB NOT NULL,
    digest            BLOB NOT NULL
);
CREATE UNIQUE INDEX entries_by_call ON entries (rollout, kind, call_id);
CREATE TABLE texts (
    seq          INTEGER PRIMARY KEY,             -- of the entry
    base         INTEGER,                         -- seq of the text that starts this one; NULL = none
    base_len     INTEGER NOT NULL,                -- how many bytes of it
    request      BLOB,                            -- zstd of the rest; NULL = no request text
    output_items BLOB                             -- zstd of the JSON array; NULL = none
);
CREATE TABLE marks (
    rollout INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    reason  TEXT NOT NULL,
    at      REAL NOT NULL,
    PRIMARY KEY (rollout, call_id, reason)
) WITHOUT ROWID;
CREATE TABLE policy (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    version TEXT,
    state   TEXT NOT NULL
);
"""

_RETENTION = """
CREATE INDEX rollouts_retired ON rollouts (retired_at) WHERE swept_at IS NULL AND retired_at IS NOT NULL;
"""

MIGRATIONS = (_FIRST, _RETENTION)
"""Element n turns a file of version n into one of version n + 1."""


class Connection(sqlite3.Connection):
    """As `tables.connection.Connection` wants it: a writer holds the whole file, so no row needs a lock."""

    row_lock = ""
    begin_view = "BEGIN"

    def change(self, change: Change, values: tuple[Any, ...], /) -> None:
        self.execute(change.sql, values)

    def learn(self, sql: str, parameters: tuple[Any, ...], row: tuple[Any, ...] | None, /) -> None:
        """Asking again costs no more than remembering."""

    def draw(self, last_seq: int, /) -> None:
        """SQLite numbers a row as it is inserted."""


def prepare(folder: Path) -> Path:
    """Make `folder` a store of the current version, durably, and return the path of its file."""
    file = folder / FILE_NAME
    try:
        _make_folder(folder)
        with _locked(folder) as handle:
            if not file.exists():  # opening it beside SQLite would drop the locks that this process holds on it
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            connection = connect(file)
            try:
                _migrate(connection, file)
            finally:
                connection.close()
            os.fsync(handle)
    except OSError as error:
        raise StoreError(f"cannot open the store at {folder}: {error}") from error
    except DAMAGED as error:
        raise StoreError(
            f"{file} is no usable store: {error}", hint="`rolltape verify` says what is damaged"
        ) from error
    return file


def connect(file: Path, *, read_only: bool = False) -> Connection:
    """A connection that any one thread at a time may use; transactions are begun and ended by hand."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"{file.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    if not read_only:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # counts for a new file only, before anything is in it
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA journal_size_limit=67108864")
    return connection


def check_version(connection: sqlite3.Connection, file: Path) -> int:
    """The schema version of the file; raises `StoreError` for one that a newer Rolltape wrote."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{file} has schema version {version}; this Rolltape knows up to {len(MIGRATIONS)}",
            hint="open it with the Rolltape that wrote it, or a newer one",
        )
    return version


def _migrate(connection: sqlite3.Connection, file: Path) -> None:
    version = check_version(connection, file)
    if version == len(MIGRATIONS):
        return
    if not version and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StoreError(f"{file} holds tables of another program", hint="give Rolltape a directory of its own")
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        connection.executescript(
            f"BEGIN IMMEDIATE; {step} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={number}; COMMIT;"
        )


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Two processes never set up one directory at a time: a switch to WAL does not wait for its lock."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
