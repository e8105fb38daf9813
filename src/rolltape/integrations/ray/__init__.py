"""Rollouts in a Ray actor, handed out one by one to a trainer anywhere in the cluster.

spinup    `spinup_rollout_actor`: the actor, started and checked
actor     `RolloutActor`: gateway, token source and rollouts, in one process on one node
batch     the rollouts of one request, bounded by how fast they are fetched
agent     `AgentLoop`: what makes a rollout; `HarnessLoop` runs a harness
site      what the actor stands on: gateway first, source last, closed the other way round
consumer  `Rollouts`: the trainer's side, which says what it has accepted
arrived   what it is handed. Values only

A snapshot is retired when the consumer has accepted its rollout, and by nothing else: see docs/decisions/0018.
"""

from importlib.util import find_spec

from rolltape.errors import ConfigError

if find_spec("ray") is None:
    raise ConfigError("rolltape.integrations.ray needs the package ray.", hint="pip install 'rolltape[ray]'")

from rolltape.integrations.ray.agent import AgentLoop, HarnessLoop, Seat
from rolltape.integrations.ray.arrived import Arrived
from rolltape.integrations.ray.consumer import Rollouts
from rolltape.integrations.ray.site import GatewayAt
from rolltape.integrations.ray.spinup import spinup_rollout_actor

__all__ = ["AgentLoop", "Arrived", "GatewayAt", "HarnessLoop", "Rollouts", "Seat", "spinup_rollout_actor"]
