"""`rolltape verify`: derive every digest of a store, or of one certificate, anew and compare."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rolltape.cli import terminal
from rolltape.errors import ConfigError
from rolltape.rebuild import DeliveryForm, Rebuilt, Witnesses, differences, read_policy, rebuild
from rolltape.rebuild.certificate import VERSION
from rolltape.record import TokenCaptureSnapshot
from rolltape.store.sqlite import VerifyReport
from rolltape.store.sqlite import verify as verify_store

if TYPE_CHECKING:
    from rolltape.store import CaptureStore


def verify(
    *,
    dir: terminal.Dir = terminal.DEFAULT_DIR,
    rollout: Annotated[
        str | None, Parameter(help="Only this rollout: rebuild it and check its certificate, or print one.")
    ] = None,
    certificate: Annotated[
        Path | None,
        Parameter(help="The certificate to check: `rebuild --json`, a result file of `run`, or the certificate alone."),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Derive every digest of a store, or of a rollout's certificate, anew and compare."""
    if rollout is not None:
        _verify_rollout(dir, rollout, certificate, json)
        return
    if certificate is not None:
        raise ConfigError("a certificate is of one rollout", hint="name it with --rollout")
    terminal.must_be_store(dir)
    with _bar() as progress:
        report = verify_store(dir, progress=progress)
    if json:
        terminal.print_json(asdict(report) | {"sound": report.sound})
    else:
        _print(report, dir)
    if not report.sound:
        sys.exit(1)


def _verify_rollout(directory: Path, rollout: str, file: Path | None, json: bool) -> None:
    async def read(store: "CaptureStore") -> TokenCaptureSnapshot:
        return await terminal.snapshot_of(store, (await terminal.find(store, rollout)).rollout_id)

    snapshot = terminal.with_store(directory, read)
    then = _certificate_in(file, snapshot.rollout_id) if file is not None else None
    now = _again(snapshot, then).certificate.to_json()
    found = list(differences(now, then)) if then is not None else []
    if json:
        terminal.print_json({"certificate": now, "differences": found, "holds": not found})
    else:
        _print_certificate(now, found, checked=then is not None)
    if found:
        sys.exit(1)


def _again(snapshot: TokenCaptureSnapshot, then: Mapping[str, Any] | None) -> Rebuilt:
    """The rollout rebuilt as the certificate says that it was."""
    if then is None:
        return rebuild(snapshot)
    if then.get("certificate") != VERSION or then.get("delivery") not in get_args(DeliveryForm):
        raise ConfigError(f"this is no certificate of version {VERSION}")
    told = then.get("witnesses") or {}
    witnesses = Witnesses(told.get("call_id"), told.get("response_id"), tuple(told.get("reply_ids") or ()))
    return rebuild(snapshot, delivery=then["delivery"], terminal=witnesses, policy=read_policy(then.get("policy")))


def _certificate_in(path: Path, rollout_id: str) -> Mapping[str, Any]:
    """The rollout's certificate in a file of JSON, or of one JSON object a line. Raises `ConfigError`."""
    try:
        found = [msgspec.json.decode(line, type=dict[str, Any]) for line in path.read_bytes().splitlines() if line]
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read a certificate from {str(path)!r}: {error}") from error
    for body in found:
        held = body.get("certificate")
        one = held if isinstance(held, dict) else body
        if one.get("rollout_id") == rollout_id and "checks" in one:
            return one
    raise ConfigError(f"{str(path)!r} holds no certificate of {rollout_id!r}")


def _print_certificate(now: Mapping[str, Any], found: Sequence[str], *, checked: bool) -> None:
    marks = {"pass": "ok", "fail": "FAILS", "unknown": "unknown"}
    for check in now["checks"]:
        sys.stdout.write(terminal.seen(f"{check['name']:20} {marks[check['verdict']]:8} {check['reason']}") + "\n")
    sys.stdout.writelines(f"differs: {terminal.seen(one)}\n" for one in found)
    held = ": the certificate holds" if checked and not found else ": the certificate does not hold" if checked else ""
    sys.stdout.write(f"{now['rollout_id']}: {now['verdict']}, {now['digest']}{held}\n")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = terminal.err()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("verify", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: VerifyReport, directory: Path) -> None:
    for problem in report.problems:
        sys.stdout.write(f"damaged: {problem}\n")
    held = f"{report.rollouts} rollouts, {report.entries} calls, {report.texts} texts"
    swept = f" ({report.swept} rollouts swept by retention)" if report.swept else ""
    verdict = "every digest holds" if report.sound else f"{len(report.problems)} problems"
    sys.stdout.write(f"{directory}: {held}{swept}: {verdict}\n")
