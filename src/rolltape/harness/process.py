"""One child process that is sure to end, with everything it started, and that cannot fill the disk.

The child leads a session of its own, and its environment carries a mark that no other process has. When it is over -
by itself, at its time limit, by request, or because our own task was cancelled - whatever is still there ends too:
members of its session or process group, its descendants, and every process that bears the mark, wherever it
put itself. Nothing else is ever signalled. A process that leaves the session *and* wipes its environment *and* outlives
its parent can't be told from a stranger's and stays.

Output goes to files of bounded size: the head as it comes, then the last part; what lay between is counted in a line.
The child is never blocked on a full pipe.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import psutil

MARK = "ROLLTAPE_ROLLOUT_MARK"
KEEP_BYTES = 4 << 20
GRACE_S = 5.0
POLL_S = 1.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `code` is its exit status, negative for a signal, None if it never started."""

    code: int | None
    seconds: float
    timed_out: bool = False
    stopped: bool = False
    """True when the caller's `stop` asked for the end."""
    error: str = ""
    """Why it could not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run. `mark` must be unique to it; the environment is exactly `env` and the mark.

    `stdout` and `stderr` are files to be written, at most twice `keep_bytes` each. `time_limit` and `grace` (between
    SIGTERM and SIGKILL) are in seconds.
    """

    args: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    mark: str
    stdout: Path
    stderr: Path
    time_limit: float
    grace: float = GRACE_S
    keep_bytes: int = KEEP_BYTES
    user: int | None = None
    """Whom all its processes belong to, and no others do: whatever that user runs ends with it. None = ours."""


async def run_process(command: Command, stop: Callable[[], Awaitable[bool]] | None = None) -> Exit:
    """Run `command` to its end. `stop` is asked every second; once it says True the process is ended."""
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        try:
            out = await stack.enter_async_context(_captured(command.stdout, command.keep_bytes))
            err = await stack.enter_async_context(_captured(command.stderr, command.keep_bytes))
        except OSError as error:
            return Exit(None, time.monotonic() - began, error=f"its output cannot be kept: {error}")
        try:
            process = await asyncio.create_subprocess_exec(
                *command.args,
                cwd=command.cwd,
                env={**command.env, MARK: command.mark},
                stdin=subprocess.DEVNULL,
                stdout=out.take_write_end(),
                stderr=err.take_write_end(),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return Exit(None, time.monotonic() - began, error=str(error))
        except asyncio.CancelledError:
            end_marked(command.mark)  # asyncio ends the child that it was starting, but not what that had started
            raise
        finally:
            out.close_write_end()
            err.close_write_end()
        why = await _until_over(process, command, stop)
    code = process.returncode
    return Exit(code, time.monotonic() - began, timed_out=why == "timed_out", stopped=why == "stopped")


def end_marked(mark: str) -> int:
    """Kill every process that bears `mark`, and say how many there were. For what an earlier run left behind."""
    ended = 0
    while found := _alive(mark, leader=None):
        ended += len(found)
        _signal(found, signal.SIGKILL)
        while any(_running(one) for one in found):
            time.sleep(_LOOK_S)
    return ended


async def _until_over(
    process: asyncio.subprocess.Process, command: Command, stop: Callable[[], Awaitable[bool]] | None
) -> str:
    try:
        async with asyncio.timeout(command.time_limit):
            return await _exit_or_stop(process, stop)
    except TimeoutError:
        return "timed_out"
    finally:
        try:
            await _end(process, command)
        except BaseException:
            # Cancelled a second time, or worse: no more patience, but nothing may stay.
            _signal(_alive(command.mark, process.pid, command.user), signal.SIGKILL)
            raise


async def _exit_or_stop(process: asyncio.subprocess.Process, stop: Callable[[], Awaitable[bool]] | None) -> str:
    if stop is None:
        await process.wait()
        return "exited"
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await process.wait()
                return "exited"
        if await stop():
            return "stopped"


async def _end(process: asyncio.subprocess.Process, command: Command) -> None:
    left = await asyncio.to_thread(_alive, command.mark, process.pid, command.user)
    _signal(left, signal.SIGTERM)
    left = await _still_running(left, command.grace)
    for _ in range(20):  # a process may start another between the look and the kill
        left = list({*left, *await asyncio.to_thread(_alive, command.mark, process.pid, command.user)})
        if not left:
            break
        _signal(left, signal.SIGKILL)
        left = await _still_running(left, 1.0)
    await process.wait()


async def _still_running(processes: Sequence[psutil.Process], patience: float) -> list[psutil.Process]:
    # psutil's own wait would reap our children behind asyncio's back, and their exit status with them.
    deadline = time.monotonic() + patience
    while (left := [one for one in processes if _running(one)]) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    return left


def _alive(mark: str, leader: int | None, user: int | None = None) -> list[psutil.Process]:
    """Every living process of this mark, of the session that `leader` led, or of `user`, and their descendants."""
    everyone = list(psutil.process_iter(["ppid"]))
    found = {one.pid: one for one in everyone if _belongs(one, mark, leader, user)}
    while children := [one for one in everyone if one.pid not in found and one.info["ppid"] in found]:
        found |= {one.pid: one for one in children}
    return [one for one in found.values() if _running(one)]


def _belongs(one: psutil.Process, mark: str, leader: int | None, user: int | None) -> bool:
    try:
        if one.pid == os.getpid() or not _running(one):
            return False
        in_session = leader is not None and leader in (os.getsid(one.pid), os.getpgid(one.pid))
        if user is not None and user in one.uids():
            return True
        return in_session or one.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False


def _running(one: psutil.Process) -> bool:
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for one in processes:
        with contextlib.suppress(psutil.Error):
            one.send_signal(number)


class _Capture(asyncio.Protocol):
    """One pipe into one bounded file."""

    def __init__(self, path: Path, keep: int) -> None:
        self._file = _fresh(path)
        self._read_end, self._write_end = os.pipe()
        self._keep = keep
        self._head = 0
        self._tail = bytearray()
        self._left_out = 0
        self.closed = asyncio.Event()

    async def start(self) -> asyncio.ReadTransport:
        pipe = os.fdopen(self._read_end, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, pipe)
        return transport

    def take_write_end(self) -> int:
        return self._write_end

    def close_write_end(self) -> None:
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def data_received(self, data: bytes) -> None:
        room = max(0, self._keep - self._head)
        self._head += len(data[:room])
        self._write(data[:room])
        self._tail += data[room:]
        if len(self._tail) > 2 * self._keep:  # cut only now and then: each cut moves the rest
            self._cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cut()
        if self._left_out:
            self._write(f"\n[... {self._left_out} bytes left out ...]\n".encode())
        self._write(bytes(self._tail))
        self._file.close()
        self.closed.set()

    def _cut(self) -> None:
        surplus = max(0, len(self._tail) - self._keep)
        del self._tail[:surplus]
        self._left_out += surplus

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk must not keep us from draining the pipe
            self._file.write(data)


def _fresh(path: Path) -> FileIO:
    """A new file at `path`. What an earlier process put there, a pipe that blocks or a link, is not written to."""
    path.unlink(missing_ok=True)
    return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


@contextlib.asynccontextmanager
async def _captured(path: Path, keep: int) -> AsyncIterator[_Capture]:
    capture = _Capture(path, keep)
    transport = await capture.start()
    try:
        yield capture
        with contextlib.suppress(TimeoutError):  # a process that got away may hold the pipe
            async with asyncio.timeout(2.0):
                await capture.closed.wait()
    finally:
        capture.close_write_end()
        transport.close()
        await capture.closed.wait()
