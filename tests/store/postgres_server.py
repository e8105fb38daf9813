"""A real PostgreSQL server for tests: a cluster of its own in a temporary directory, on 127.0.0.1.

The server refuses to run as root; there its programs run as the user `postgres`.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

_AS = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}


def _programs() -> Path:
    """Where the newest installed server has its programs; Debian keeps them out of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    program = found[-1] if found else shutil.which("initdb")
    assert program is not None, "there is no PostgreSQL server; `.ci/need initdb postgresql` installs one"
    return Path(program).parent


class Server:
    """A running server. `database()` makes a new, empty database and returns its connection string."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="rolltape-pg-", dir="/tmp"))
        if _AS:
            shutil.chown(self._folder, "postgres", "postgres")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._count = 0
        self._run("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        options = (
            f"-k {self._folder} -p {self.port} -c listen_addresses=127.0.0.1 -c shared_buffers=32MB"
            " -c max_connections=40 -c deadlock_timeout=200ms"
        )
        self._run("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self, *, kill: bool = False) -> None:
        """End it in order, or as a crash would."""
        self._run("pg_ctl", "-w", "-m", "immediate" if kill else "fast", "stop")

    def database(self) -> str:
        self._count += 1
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE store_{self._count}".encode())
        return self.dsn(f"store_{self._count}")

    def dsn(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [_programs() / program, "-D", self._folder / "data", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=60, **_AS)  # type: ignore[call-overload]
