"""What every command says and how: consoles, JSON, errors, and the options that they share.

Colour is decoration: every command says the same without it (`NO_COLOR`, a pipe, a dumb terminal).
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias, TypeVar

import msgspec
from cyclopts import Parameter
from rich.console import Console

from rolltape.errors import ConfigError, StoreError
from rolltape.record import TokenCaptureSnapshot

if TYPE_CHECKING:
    from rolltape.store import CaptureStore, RolloutState

T = TypeVar("T")

DEFAULT_DIR = Path("rolltape-data")
Dir: TypeAlias = Annotated[Path, Parameter(name="--dir", env_var="ROLLTAPE_DIR", help="The store's directory.")]
Json: TypeAlias = Annotated[
    bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON instead of a picture.")
]
Id: TypeAlias = Annotated[str, Parameter(help="A rollout's id, or a beginning of it that no other shares.")]


def out() -> Console:
    """The console for data. A pipe is a wide page, so that tables are not squeezed."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200
    return Console(highlight=False, width=wide)


def err() -> Console:
    """The console for notes and progress."""
    return Console(stderr=True, highlight=False)


def plain_errors() -> Console:
    """The console for errors: the text as it is, so that it can be searched and quoted."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def note(text: str) -> None:
    """One line for people, on stderr."""
    sys.stderr.write(f"{text}\n")


def worded(message: str, hint: str = "") -> str:
    """An error as every command words it."""
    return f"error: {message}\n\nhint: {hint}" if hint else f"error: {message}"


def fail(message: str, hint: str = "") -> NoReturn:
    """Say what went wrong and exit with status 1."""
    note(worded(message, hint))
    sys.exit(1)


def print_json(value: Any) -> None:
    """`value` as one line of strict JSON on stdout; a float that is not finite becomes null."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


_UNSEEN = {**{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}, 127: 0x2421}
_UNSEEN |= {code: f"\\u{code:04x}" for code in (*range(128, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def seen(text: str) -> str:
    """`text` with its control characters made visible: what a model says must not steer the reader's terminal."""
    return text.translate(_UNSEEN)


def reward(value: float | None) -> str:
    """A reward as every table shows it: 1 in green, 0 dim, - for none."""
    if value is None:
        return "[dim]-[/]"
    return f"[green]{value:g}[/]" if value > 0 else f"[dim]{value:g}[/]"


def with_store(directory: Path, use: Callable[["CaptureStore"], Awaitable[T]]) -> T:
    """`use` with the store in `directory`, which must exist: reading never makes one."""
    from rolltape.store import TokenCaptureStore  # the one import that costs; `rebuild --entries` needs none

    must_be_store(directory)

    async def within() -> T:
        store = TokenCaptureStore(directory)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(within())


def must_be_store(directory: Path) -> None:
    """Raises `ConfigError` where no store is: reading never makes one."""
    from rolltape.store.sqlite.schema import FILE_NAME

    if not (directory / FILE_NAME).is_file():
        raise ConfigError(f"there is no store at {directory}", hint="name one with --dir or ROLLTAPE_DIR")


async def find(store: "CaptureStore", text: str) -> "RolloutState":
    """The rollout whose id is `text`, or the only one whose id begins with it."""
    states = await store.rollouts()
    exact = [state for state in states if state.rollout_id == text]
    found = exact or [state for state in states if state.rollout_id.startswith(text)]
    if not found:
        raise StoreError(f"no rollout {text!r}", hint="rolltape ls lists them")
    if len(found) > 1:
        names = ", ".join(state.rollout_id for state in found[:8]) + (", ..." if len(found) > 8 else "")
        raise StoreError(f"{text!r} is the beginning of {len(found)} rollouts: {names}", hint="give more of the id")
    return found[0]


async def snapshot_of(store: "CaptureStore", rollout_id: str, *, texts: bool = False) -> TokenCaptureSnapshot:
    """What the store holds of a rollout, without freezing it. Raises `StoreError` when that is nothing."""
    snapshot = await store.read(rollout_id, texts=texts)
    if snapshot is None:
        raise StoreError(f"nothing is stored of rollout {rollout_id!r}", hint="rolltape ls lists what there is")
    return snapshot
