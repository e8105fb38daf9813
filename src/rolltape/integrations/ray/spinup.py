"""Put a rollout actor on a node, and come back when it could run a rollout."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from rolltape.config import ServeConfig
from rolltape.errors import ConfigError
from rolltape.integrations.ray.actor import RolloutActor, Setup
from rolltape.integrations.ray.agent import AgentLoop, HarnessLoop
from rolltape.integrations.ray.consumer import plain_errors
from rolltape.integrations.ray.site import GatewayAt, TokenSourceFactory
from rolltape.rebuild import DeliveryForm, KindPolicy


def spinup_rollout_actor(
    *,
    gateway: ServeConfig | GatewayAt,
    agent: AgentLoop | str,
    token_source_factory: TokenSourceFactory | None = None,
    concurrency: int = 4,
    delivery: DeliveryForm = "chain",
    policy: KindPolicy | None = None,
    budget: Mapping[str, Any] | None = None,
    labels: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    start_seconds: float = 600.0,
) -> Any:
    """The handle of a new actor that has started; `shutdown` ends it in order.

    `gateway`: one to start in the actor, on a free port of its own, or one that is serving. `agent`: what makes a
    rollout; a text names a harness. `token_source_factory` is pickled here, called in the actor and must give a
    TokenSource; without it the gateway's own store is read. `concurrency`: rollouts at a time. `budget` is the
    gateway's (calls, tokens, seconds), None = unbounded. `options` are Ray's: name, resources, num_cpus, runtime_env...

    Raises `ConfigError` for whatever would fail the first rollout, or if it has not started after `start_seconds`.
    """
    _check(gateway, token_source_factory, concurrency)
    setup = Setup(
        gateway=gateway,
        agent=HarnessLoop(agent) if isinstance(agent, str) else agent,
        token_source_factory=token_source_factory,
        concurrency=concurrency,
        delivery=delivery,
        policy=policy,
        budget=budget or {},
        labels=labels or {},
    )
    remote: Any = ray.remote(RolloutActor)  # Ray's types do not follow methods of an actor
    actor = remote.options(**(options or {})).remote(setup)
    try:
        with plain_errors():
            ray.get(actor.start.remote(), timeout=start_seconds)
    except ray.exceptions.GetTimeoutError:
        ray.kill(actor)
        hint = "does any node have the resources that `options` ask for?"
        raise ConfigError(f"the rollout actor has not started after {start_seconds:g} s", hint=hint) from None
    except ray.exceptions.ActorDiedError as error:
        hint = "the packages of the agent loop and of the source's factory must be installed on the actor's node"
        raise ConfigError(f"the rollout actor died at its start: {error}", hint=hint) from None
    except BaseException:
        ray.kill(actor)
        raise
    return actor


def _check(gateway: ServeConfig | GatewayAt, factory: object, concurrency: int) -> None:
    if not Path(gateway.dir).is_absolute():
        hint = "the actor stands in another directory, maybe on another node"
        raise ConfigError(f"dir must be absolute, not {gateway.dir!r}", hint=hint)
    if factory is not None and not callable(factory):
        hint = "give what makes the source: it is made in the actor, and a source holds what cannot be sent there"
        raise ConfigError(f"token_source_factory is a {type(factory).__name__}, which cannot be called", hint=hint)
    if concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1, not {concurrency}")
