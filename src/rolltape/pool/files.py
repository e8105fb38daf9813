"""The files of a pool: a local folder, or anything that pyarrow opens, and how a part appears whole or not at all.

On a disk a part is written beside its place under a name that no reader takes, synced, renamed, and its folder synced.
An object store shows nothing before an upload has ended, so there it is written in place.
"""

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from rolltape.errors import ConfigError, StoreError
from rolltape.pool.schema import FORMAT, ROWS_IN_A_GROUP, SCHEMAS, Table, writer_options

SUFFIX = ".parquet"
_MARK = "pool.json"
_COPY = "-copy"
_OBJECT_STORES = ("s3", "gcs", "abfs")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a table. `folder` is its partition below the table's own, "" where the table has none."""

    table: Table
    folder: str
    name: str
    size: int

    @property
    def path(self) -> str:
        return "/".join(filter(None, (self.table, self.folder, self.name + SUFFIX)))

    @property
    def written_at(self) -> float:
        """Epoch seconds, by the clock of its writer; its name begins with them."""
        return int(self.name.partition("-")[0]) / 1e9


def new_name(*, copy: bool = False) -> str:
    """A name that no other writer can have. Names sort by time; `copy`: of a part that takes the place of others."""
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:16]}" + (_COPY if copy else "")


def partition(run: str, policy: str) -> str:
    return f"run={quote(run, safe='')}/policy={quote(policy, safe='')}"


class Files:
    """The files below one place. Raises `ConfigError` where there is no pool, unless `create` makes one."""

    def __init__(self, place: str | Path, *, filesystem: pa.fs.FileSystem | None = None, create: bool = False) -> None:
        self.uri = str(place)
        self.fs, self.root = _opened(self.uri, filesystem)
        self.local = self.fs.type_name == "local"
        self.uri = self.root if self.local else self.uri
        if not self._exists(_MARK):
            if not create:
                raise ConfigError(f"there is no pool at {self.uri}", hint="`rolltape pool add` makes one")
            self.write(_MARK, msgspec.json.encode({"format": FORMAT, "pool_id": uuid.uuid4().hex}))
        told = msgspec.json.decode(self.read(_MARK), type=dict[str, Any])
        if told.get("format") != FORMAT:
            raise ConfigError(f"{self.uri} has format {told.get('format')!r}; this version reads {FORMAT}")
        self.pool_id = str(told["pool_id"])

    def _exists(self, path: str) -> bool:
        return bool(self.fs.get_file_info(self.full(path)).type == pa.fs.FileType.File)

    def full(self, path: str) -> str:
        return f"{self.root}/{path}"

    def parts(self, table: Table) -> list[Part]:
        """What is there of a table, in the order of names."""
        where = pa.fs.FileSelector(self.full(table), allow_not_found=True, recursive=True)
        found = [self._part(table, info) for info in self.fs.get_file_info(where) if _is_part(info)]
        return sorted(found, key=lambda part: part.name)

    def _part(self, table: Table, info: Any) -> Part:
        inside = info.path.rpartition(f"{self.root}/{table}/")[2]
        folder, _, name = inside.rpartition("/")
        return Part(table, folder, name.removesuffix(SUFFIX), info.size)

    def exists(self, part: Part) -> bool:
        return self._exists(part.path)

    def remove(self, part: Part) -> None:
        """Gone when it returns, also where another had removed it."""
        try:
            self.fs.delete_file(self.full(part.path))
        except FileNotFoundError:
            return

    def put(self, table: Table, folder: str, name: str, content: pa.Table, *, replaces: Sequence[str] = ()) -> Part:
        """Write one part; it is durable on return."""
        with self.writing(table, folder, name, replaces=replaces) as writer:
            writer.write_table(content, row_group_size=_group_size(table))
        return Part(table, folder, name, 0)

    @contextmanager
    def writing(self, table: Table, folder: str, name: str, *, replaces: Sequence[str] = ()) -> Iterator[Any]:
        """A writer of a part, which appears, durable, when the block ends well. `replaces` names older parts."""
        schema = SCHEMAS[table].with_metadata({"replaces": " ".join(replaces)} if replaces else {})
        with (
            self._appearing(Part(table, folder, name, 0).path) as sink,
            pa.parquet.ParquetWriter(sink, schema, **writer_options(table)) as writer,
        ):
            yield writer

    def replaced_by(self, part: Part) -> list[str]:
        """The parts that a compacted one took the place of."""
        if not part.name.endswith(_COPY):
            return []
        told = pa.parquet.read_schema(self.full(part.path), filesystem=self.fs).metadata or {}
        return (told.get(b"replaces") or b"").decode().split()

    def table(self, part: Part) -> pa.Table:
        return pa.parquet.read_table(self.full(part.path), filesystem=self.fs, partitioning=None)

    def batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        """A row group at a time."""
        with pa.parquet.ParquetFile(self.full(part.path), filesystem=self.fs) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group).to_batches()

    def write(self, path: str, content: bytes) -> None:
        with self._appearing(path) as sink:
            sink.write(content)

    def read(self, path: str) -> bytes:
        with self.fs.open_input_stream(self.full(path)) as stream:
            content: bytes = stream.read()
        return content

    def names(self, folder: str) -> list[str]:
        where = pa.fs.FileSelector(self.full(folder), allow_not_found=True)
        return sorted(info.base_name for info in self.fs.get_file_info(where) if not info.base_name.startswith("."))

    @contextmanager
    def _appearing(self, path: str) -> Iterator[Any]:
        whole = self.full(path)
        folder, _, name = whole.rpartition("/")
        if self.local:
            with _appearing_on_disk(Path(whole)) as file:
                yield file
        elif self.fs.type_name in _OBJECT_STORES:
            with self.fs.open_output_stream(whole) as sink:
                yield sink
        else:
            self.fs.create_dir(folder, recursive=True)
            unfinished = f"{folder}/.{name}.{uuid.uuid4().hex[:8]}"
            with self.fs.open_output_stream(unfinished) as sink:
                yield sink
            self.fs.move(unfinished, whole)


def _opened(uri: str, filesystem: pa.fs.FileSystem | None) -> tuple[pa.fs.FileSystem, str]:
    if filesystem is not None:
        return filesystem, uri.rstrip("/")
    if "://" not in uri:
        return pa.fs.LocalFileSystem(), str(Path(uri).absolute())
    try:
        opened, root = pa.fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ConfigError(f"cannot open the pool {uri!r}: {error}") from error
    return opened, root.rstrip("/")


def _is_part(info: Any) -> bool:
    name = info.base_name
    return info.type == pa.fs.FileType.File and name.endswith(SUFFIX) and not name.startswith(".")


def _group_size(table: Table) -> int:
    return ROWS_IN_A_GROUP if table == "rows" else 65_536


@contextmanager
def _appearing_on_disk(path: Path) -> Iterator[Any]:
    try:
        made = _make_folders(path.parent)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        for folder in (path.parent, *made):
            _sync(folder)
    except OSError as error:
        raise StoreError(f"cannot write to the pool: {error.filename}: {error.strerror}") from error


def _make_folders(folder: Path) -> list[Path]:
    """Make what is missing; the folders whose listing that changed."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return [one.parent for one in missing]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
