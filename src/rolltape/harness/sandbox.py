"""What a harness can reach beside the folder of its attempt: not the store, not the workspaces of others, not us.

Two ways, tried for real before a run begins, since either may be there and be forbidden:

* `Bubblewrap`: a file system that is read-only but for the attempt, without our home, sockets and the hidden places and
  with a /tmp of its own; no capability; processes of its own, so that no other can be seen, signalled or traced.
* `OwnUser`: where we are root, a user for each attempt that owns nothing but the attempt's folder and ends with it.
  Files that everybody may read stay readable.

`Open` is none. The network is not cut: the gateway is reached by it. Whoever sets a task up is trusted, so that its
set-up runs outside; the check runs what the agent left behind, so that it runs within.
"""

import contextlib
import os
import pwd
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from rolltape.errors import ConfigError
from rolltape.harness.process import Command, run_process

Wanted: TypeAlias = Literal["auto", "required", "off"]
USERS = range(2**30, 2**31 - 1)
"""Where users for attempts are drawn from: above what systems give to people and services, and enough that two runs
never draw the same."""
TMP, SOCKETS = Path("/tmp"), Path("/run")  # noqa: S108 - what others see of it is what this is about

MAX_PATH = 4096


class Sandbox(Protocol):
    """How the commands of attempts are started. `name` is what results say."""

    @property
    def name(self) -> str: ...

    def take(self, directory: Path) -> None:
        """Make an attempt's folder, and all that is in it by now, the harness's own."""
        ...

    def enter(self, command: Command, directory: Path) -> Command:
        """`command` within the sandbox of the attempt in `directory`."""
        ...

    def give_back(self, directory: Path) -> None:
        """The attempt is over: its folder is the caller's again."""
        ...


@dataclass(frozen=True, slots=True)
class Open:
    """No sandbox: the harness may do what the user may who runs it. `why` there is none, "" = none was wanted."""

    why: str = ""
    name: str = "none"

    def take(self, directory: Path) -> None:
        """It is the harness's as it is."""

    def enter(self, command: Command, directory: Path) -> Command:
        """As it is."""
        return command

    def give_back(self, directory: Path) -> None:
        """Nothing was taken."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """By `bwrap`. `hidden`: folders that are empty within, and files that are."""

    executable: str
    hidden: tuple[Path, ...] = ()
    name: str = "bubblewrap"

    def take(self, directory: Path) -> None:
        """It is bound into the sandbox; no owner changes."""

    def enter(self, command: Command, directory: Path) -> Command:
        """Behind `bwrap`, which dies with us and takes everything in it along."""
        within = [*self._view(directory, _named_in(command)), "--chdir", str(command.cwd), "--"]
        return replace(command, args=[self.executable, *within, *command.args])

    def give_back(self, directory: Path) -> None:
        """Nothing was taken."""

    def _view(self, directory: Path, named: Sequence[Path]) -> Iterator[str]:
        """What is mounted, in order: a later mount covers an earlier one."""
        yield from ("--die-with-parent", "--cap-drop", "ALL", "--unshare-pid", "--unshare-ipc", "--unshare-cgroup-try")
        yield from ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
        for place in (TMP, Path.home(), SOCKETS):
            if place.is_dir() and place != place.parent:
                yield from ("--tmpfs", str(place))
        yield from ("--ro-bind-try", f"{SOCKETS}/systemd/resolve", f"{SOCKETS}/systemd/resolve")
        for folder in _kept(named, (TMP, Path.home())):
            yield from ("--ro-bind", str(folder), str(folder))
        for path in self.hidden:
            if path.is_dir():
                yield from ("--tmpfs", str(path))
            elif path.exists():
                yield from ("--ro-bind", os.devnull, str(path))
        yield from ("--bind", str(directory), str(directory))


@dataclass(frozen=True, slots=True)
class OwnUser:
    """By `setpriv` and a user of its own, for root. `shared`: folders whose names may not be listed, but which lead to
    attempts."""

    setpriv: str
    shared: tuple[Path, ...] = ()
    name: str = "uid"
    _users: dict[Path, int] = field(default_factory=dict)

    def take(self, directory: Path) -> None:
        for folder in self.shared:
            folder.chmod(0o711)
        self._users[directory] = user = self._users.get(directory) or _new_user()
        _own(directory, user)

    def enter(self, command: Command, directory: Path) -> Command:
        """As the attempt's user, who can become nobody else; what was put into its folder meanwhile becomes theirs."""
        user = self._users[directory]
        _own(directory, user)
        as_user = (f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", "--bounding-set=-all")
        return replace(command, args=[self.setpriv, *as_user, "--", *command.args], user=user)

    def give_back(self, directory: Path) -> None:
        if self._users.pop(directory, None) is not None:
            _own(directory, os.getuid())


async def sandbox_for(wanted: Wanted, directory: Path, hidden: Sequence[Path], programs: Sequence[str]) -> Sandbox:
    """The strongest sandbox that works here for attempts under `directory`.

    `hidden` are the places that no harness may read, `directory` among them or not; `programs` are absolute paths that
    must be runnable within. Raises `ConfigError` where one is required and none works, naming why.
    """
    if wanted == "off":
        return Open()
    reasons = []
    for way in _ways(directory, hidden):
        why = way if isinstance(way, str) else await _fails(way, directory, programs)
        if not why and not isinstance(way, str):
            return way
        reasons.append(why)
    if wanted == "required":
        raise ConfigError(
            f"no sandbox works here: {'; '.join(reasons)}",
            hint="install bubblewrap, or run as root; --sandbox off trusts the harness",
        )
    return Open("; ".join(reasons))


def _ways(directory: Path, hidden: Sequence[Path]) -> Iterator[Sandbox | str]:
    """Each way, or why it is none."""
    executable = shutil.which("bwrap")
    places = tuple(path.absolute() for path in (directory, *hidden))
    yield Bubblewrap(executable, places) if executable else "bubblewrap (bwrap) is not installed"
    shared = directory.absolute(), directory.absolute() / "workspaces"
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0:
        yield "a user for each attempt takes root"
    else:
        yield OwnUser(setpriv, shared) if setpriv else "a user for each attempt takes setpriv, of util-linux"


async def _fails(sandbox: Sandbox, directory: Path, programs: Sequence[str]) -> str:
    """Why `sandbox` does not do what it should, "" if it does: tried with a secret, a folder, and the programs."""
    try:
        with _trial(sandbox, directory, programs) as command:
            done = await run_process(command)
            said = " ".join(f"{_text(command.stdout)} {_text(command.stderr)}".split())
    except OSError as error:
        return f"{sandbox.name} failed: {error}"
    return "" if done.code == 0 else f"{sandbox.name} failed: {said or done.error or done.code}"


@contextlib.contextmanager
def _trial(sandbox: Sandbox, directory: Path, programs: Sequence[str]) -> Iterator[Command]:
    """A command that ends well exactly where an attempt can write in its folder, run the programs, and read nothing of
    the workspace beside it."""
    workspaces = directory.absolute() / "workspaces"
    workspaces.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".probe-", dir=workspaces))
    attempt, secret = folder / "attempt", folder / "secret"
    try:
        folder.chmod(0o711)
        secret.touch(mode=0o600)
        attempt.mkdir(mode=0o700)
        sandbox.take(attempt)
        quoted = shlex.quote(str(secret))
        tests = [
            ": > written",
            f"! cat {quoted} 2> /dev/null",
            f"! umount -l {shlex.quote(str(workspaces))} 2> /dev/null",
        ]
        tests += [f"test -x {shlex.quote(program)}" for one in programs for program in (one, *_interpreter(one))]
        script = "\n".join(f"{test} || {{ echo {shlex.quote(f'not so: {test}')}; exit 1; }}" for test in tests)
        command = Command(
            args=["/bin/sh", "-c", script],
            cwd=attempt,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            mark=str(folder),
            stdout=folder / "stdout",
            stderr=folder / "stderr",
            time_limit=10.0,
        )
        yield sandbox.enter(command, attempt)
    finally:
        sandbox.give_back(attempt)
        shutil.rmtree(folder, ignore_errors=True)


def _kept(named: Sequence[Path], places: Sequence[Path]) -> Iterator[Path]:
    """Folders under `places` that a harness needs although they are covered: the environments of this Python and of the
    programs on PATH, the folder that we run in, and those of files that its command names."""
    folders = [Path(sys.prefix), Path(sys.base_prefix), Path.cwd()]
    folders += [folder for path in named for folder in (path.parent, path.resolve().parent)]
    folders += [Path(entry).parent for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    for folder in sorted({path.absolute() for path in folders}):  # outer ones first: they would cover the inner ones
        if folder not in places and any(folder.is_relative_to(place) for place in places) and folder.is_dir():
            yield folder


def _named_in(command: Command) -> list[Path]:
    words = (*command.args, *command.env.values())
    return [Path(word) for word in words if word.startswith("/") and os.path.exists(word)]


def _interpreter(program: str) -> list[str]:
    """What a script names in its first line."""
    try:
        with Path(program).open("rb") as file:
            first = file.readline(MAX_PATH).split() if file.read(2) == b"#!" else []
    except OSError:
        return []
    return [os.fsdecode(first[0])] if first else []


def _own(directory: Path, user: int) -> None:
    """Everything in `directory`, links themselves and not what they lead to. By the system's own program, which walks
    a tree of any depth."""
    done = subprocess.run(
        ["chown", "-hR", f"{user}:{user}", "--", directory], capture_output=True, text=True, check=False
    )
    if done.returncode and directory.exists():
        raise OSError(f"it cannot be given to user {user}: {done.stderr.strip()[:300]}")


def _new_user() -> int:
    while True:
        user = USERS.start + secrets.randbelow(len(USERS))
        if not _known(user):
            return user


def _known(user: int) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwuid(user))
    return False


def _text(path: Path) -> str:
    return path.read_text(errors="replace")[:500] if path.is_file() else ""
