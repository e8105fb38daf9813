"""Whose calls are recorded, and where they go: the block `token_id_capture` and the opt-in of each agent. Pure.

The address comes first: a path with the segment `training-token-capture` is its agent's own opt-in, and an `ng-rollout`
path without it is none. Every other address asks for a record, and `agents` may take that back: where agents are
listed, a rollout announced with the label `agent` or `harness` is recorded only if that agent opted in.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rolltape.errors import ConfigError


def shown(options: msgspec.Struct) -> str:
    """A representation of the fields that may be shown, and of no other."""
    return f"{type(options).__name__}({', '.join(f'{name}={value!r}' for name, value in options.__rich_repr__())})"


class TokenIdCapture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is recorded, and where it goes. Without this block: every call that names a rollout, to the file store."""

    enabled: bool = False
    """False: everything is served and nothing is recorded; the other keys may stay."""
    all_agents: bool = False
    """True opts every agent in. It does not enable by itself."""
    dir: str | None = None
    """Directory of the file store: node-local, absolute. Takes the place of the top-level `dir`."""
    sink: str | None = None
    """`module.path:ClassName` of a sink that takes the place of the file store; built in the gateway at start-up."""
    sink_kwargs: dict[str, Any] = {}
    """What its constructor is given. Never printed."""
    lineage_store: str | None = None
    """`module.path:ClassName` that finds the call which a prompt extends; beside a sink."""
    lineage_store_kwargs: dict[str, Any] = {}
    """What its constructor is given. Never printed."""
    rebuild_response: bool = True
    """False: stop after the write. Whoever owns the rollouts freezes, rebuilds and retires through their own source."""

    def __repr__(self) -> str:
        return shown(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = ("enabled", "all_agents", "dir", "sink", "lineage_store", "rebuild_response")
        return [(name, getattr(self, name)) for name in names]


class AgentOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One agent. `harness` is the profile that it runs, None = the agent's own name."""

    harness: str | None = None
    token_id_capture: bool = False


def opted_in(block: TokenIdCapture | None, agents: Mapping[str, AgentOptions], labels: Mapping[str, Any]) -> bool:
    """Whether the rollout with these labels is recorded, where its address alone does not decide."""
    if block is not None and block.all_agents:
        return True
    agent, harness = labels.get("agent"), labels.get("harness")
    if not agents or (agent is None and harness is None):
        return True
    if agent is not None:
        return agent in agents and agents[agent].token_id_capture
    return any(options.token_id_capture and harness in (name, options.harness) for name, options in agents.items())


def check(block: TokenIdCapture) -> None:
    """Raises `ConfigError` for what cannot be honoured."""
    if block.dir is not None and not os.path.isabs(block.dir):
        raise ConfigError(
            f"token_id_capture.dir must be absolute, not {block.dir!r}",
            hint="the reader of a relative directory may stand in another one",
        )
    for name in ("sink", "lineage_store"):
        if block.enabled and getattr(block, f"{name}_kwargs") and getattr(block, name) is None:
            raise ConfigError(f"token_id_capture.{name}_kwargs is there and no {name} to give it to")


def warnings(block: TokenIdCapture | None, agents: Mapping[str, AgentOptions]) -> Iterator[str]:
    """What looks configured and is not, in sentences."""
    willing = [name for name, options in agents.items() if options.token_id_capture]
    if block is not None and not block.enabled:
        if willing or block.all_agents:
            who = ", ".join(willing) if willing else "all_agents"
            yield (
                f"NOTHING IS CAPTURED: {who} opted in, but token_id_capture.enabled is false. Every call is served, "
                "and no rollout of this gateway can be trained on."
            )
        return
    if agents and not willing and not (block and block.all_agents):
        yield (
            f"no agent opted in: the rollouts of {', '.join(agents)} are served and not captured, unless their address "
            "says /training-token-capture"
        )
    if block is None:
        return
    if block.dir is not None and block.sink is not None:
        yield f"token_id_capture.dir is not used: {block.sink} takes the place of the file store"
    if block.lineage_store is not None and block.sink is None:
        yield "token_id_capture.lineage_store is not used: the file store knows which call a prompt extends"
