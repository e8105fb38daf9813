"""Policies and profiles that a command reads evidence with: from a file, over what was recorded."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import yaml
from cyclopts import Parameter

from rolltape import registry
from rolltape.chat import ChatRequest
from rolltape.errors import ConfigError
from rolltape.harness import Profile, find_profile
from rolltape.harness.kinds import classify
from rolltape.rebuild import KindPolicy, Verdict, read_policy
from rolltape.record import TokenCaptureSnapshot, TokenEntry

PolicyFile: TypeAlias = Annotated[
    Path | None,
    Parameter(help="A YAML file that says what becomes of each kind of call, and how rows share a rollout's weight."),
]
ProfileName: TypeAlias = Annotated[
    str | None,
    Parameter(help="A profile's name or file: its marks classify the recorded requests anew, in place of the old."),
]
Require: TypeAlias = Annotated[
    Verdict | None, Parameter(help="Leave out every rollout whose certificate says less: exact, or usable.")
]


def policy_of(path: Path | None) -> KindPolicy:
    """The policy in a YAML file; the default one without. Raises `ConfigError` naming the file."""
    if path is None:
        return KindPolicy()
    try:
        return read_policy(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the policy {str(path)!r}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error


def reader_of(name: str | None) -> Callable[[TokenCaptureSnapshot], TokenCaptureSnapshot]:
    """What reads a snapshot's kinds anew with a profile's marks; without one, the snapshot as it is."""
    if name is None:
        return lambda snapshot: snapshot
    profile = find_profile(name, registry.profiles())

    def read(snapshot: TokenCaptureSnapshot) -> TokenCaptureSnapshot:
        entries = tuple(_anew(entry, profile) for entry in snapshot.entries)
        return TokenCaptureSnapshot(
            snapshot.rollout_id,
            entries,
            snapshot.incomplete,
            snapshot.snapshot_id,
            snapshot.version,
            snapshot.incomplete_reasons,
            snapshot.outcome,
        )

    return read


def _anew(entry: TokenEntry, profile: Profile) -> TokenEntry:
    """A call whose text is gone keeps the kind that it was recorded with."""
    if entry.request_text is None:
        return entry
    request = msgspec.json.decode(entry.request_text, type=ChatRequest)
    headers: Mapping[str, str] = {name.lower(): value for name, value in entry.headers.items()}
    kind, evidence = classify(profile.calls.kinds, headers, request)
    return entry.with_(kind=kind, kind_evidence=evidence and f"{profile.name} {profile.version}: {evidence}")
