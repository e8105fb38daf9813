"""The tables on the server, in a schema of their own, and how a database becomes a store.

Whoever comes first makes them, under an advisory lock, in one transaction. A change of the tables is a new element of
`MIGRATIONS`, never an edit of an old one. What is compressed already is kept out of the server's own compression.
"""

import psycopg

from rolltape.errors import StoreError
from rolltape.store.postgres.session import SCHEMA, Session, connect, place, worded

_LOCK = 0x726F6C6C

_FIRST = """
CREATE TABLE rollouts (
    id               bigserial PRIMARY KEY,
    rollout_id       text COLLATE "C" NOT NULL UNIQUE,
    created_at       double precision NOT NULL,
    updated_at       double precision NOT NULL,
    labels           text,                               -- JSON object
    outcome          text,                               -- JSON object {reward, ending, labels}; NULL = none told
    frozen           double precision NOT NULL DEFAULT 0, -- when it was frozen; 0 = it is not
    retired_at       double precision,                   -- NULL = not retired
    swept_at         double precision,                   -- when retention removed the entries; the row is a fence
    version          bigint NOT NULL DEFAULT 1,          -- advances with every entry and every new mark
    next_step        bigint NOT NULL DEFAULT 0,
    n_entries        bigint NOT NULL DEFAULT 0,
    generated_tokens bigint NOT NULL DEFAULT 0,
    last_seq         bigint NOT NULL DEFAULT 0,          -- newest row of entries: what other nodes catch up to
    chain            bytea NOT NULL DEFAULT ''           -- SHA-256(previous chain || entry digest), in order of seq
) WITH (fillfactor = 70);
CREATE TABLE intents (
    rollout    bigint NOT NULL,
    call_id    text COLLATE "C" NOT NULL,
    step_index bigint NOT NULL,
    begun_at   double precision NOT NULL,
    PRIMARY KEY (rollout, call_id)
);
CREATE TABLE entries (
    seq               bigserial PRIMARY KEY,              -- drawn under the rollout's row lock: ascends in a rollout
    rollout           bigint NOT NULL,
    kind              smallint NOT NULL,                  -- 0 token entry, 1 known sequence only
    call_id           text COLLATE "C" NOT NULL,
    base              bigint,                             -- seq of the entry whose sequence starts this prompt
    base_len          bigint NOT NULL,                    -- how many ids of that sequence
    n_prompt          bigint NOT NULL,
    n_generation      bigint NOT NULL,
    packed            smallint NOT NULL,                  -- bits: 1 ids, 2 log_probs, 4 experts are zstd
    ids               bytea NOT NULL,                     -- int32 LE: prompt[base_len:], then the generation
    log_probs         bytea NOT NULL,                     -- float32 LE
    experts           bytea,                              -- routed_experts, C order
    header            bytea NOT NULL,                     -- canonical JSON of the other fields, defaults left out
    delivery          text NOT NULL,
    step_index        bigint,
    parent_call_id    text,
    common_prefix_len bigint,
    prompt_digest     bytea NOT NULL,
    digest            bytea NOT NULL
);
CREATE UNIQUE INDEX entries_by_call ON entries (rollout, kind, call_id);
CREATE INDEX entries_by_seq ON entries (rollout, seq);
ALTER TABLE entries ALTER ids SET STORAGE EXTERNAL, ALTER log_probs SET STORAGE EXTERNAL,
    ALTER experts SET STORAGE EXTERNAL;
CREATE TABLE texts (
    seq          bigint PRIMARY KEY,                      -- of the entry
    base         bigint,                                  -- seq of the text that starts this one; NULL = none
    base_len     bigint NOT NULL,                         -- how many bytes of it
    request      bytea,                                   -- zstd of the rest; NULL = no request text
    output_items bytea                                    -- zstd of the JSON array; NULL = none
);
ALTER TABLE texts ALTER request SET STORAGE EXTERNAL, ALTER output_items SET STORAGE EXTERNAL;
CREATE TABLE marks (
    rollout bigint NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    reason  text NOT NULL,
    at      double precision NOT NULL
);
CREATE UNIQUE INDEX marks_once ON marks (rollout, call_id, hashtextextended(reason, 0));
CREATE TABLE policy (
    id      integer PRIMARY KEY CHECK (id = 1),
    version text,
    state   text NOT NULL
);
"""

_RETENTION = """
CREATE INDEX rollouts_retired ON rollouts (retired_at) WHERE swept_at IS NULL AND retired_at IS NOT NULL;
"""

MIGRATIONS = (_FIRST, _RETENTION)
"""Element n turns a database of version n into one of version n + 1."""


def prepare(dsn: str) -> None:
    """Make the database a store of the current version. Raises `StoreError` where that cannot be."""
    try:
        session = connect(dsn, writing=True)
        try:
            session.execute("BEGIN")
            session.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
            _migrate(session, place(dsn))
            session.commit()
        finally:
            session.close()
    except psycopg.Error as error:
        raise StoreError(f"cannot open the store in {place(dsn)}: {worded(error)}") from error


def _migrate(session: Session, where: str) -> None:
    version = _version(session)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the store in {where} has schema version {version}; this Rolltape knows up to {len(MIGRATIONS)}",
            hint="open it with the Rolltape that wrote it, or a newer one",
        )
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        for statement in filter(str.strip, step.split(";\n")):
            session.execute(statement)
        session.execute("UPDATE schema_version SET version = ?", (number,))


def _version(session: Session) -> int:
    """The schema version; 0 for a database in which there was none, and which has a place for one now."""
    if session.execute(f"SELECT to_regclass('{SCHEMA}.schema_version')").fetchone()[0] is None:
        session.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        session.execute("CREATE TABLE schema_version (version integer NOT NULL)")
        session.execute("INSERT INTO schema_version VALUES (0)")
    versions = session.execute("SELECT version FROM schema_version").fetchall()
    if len(versions) != 1:
        raise StoreError(f"the schema {SCHEMA} of this database is half made: it has {len(versions)} versions")
    return int(versions[0][0])
