"""The desk of a run over a gateway's control API: the same for a gateway of our own and for one elsewhere."""

from collections.abc import Mapping
from typing import Any

from rolltape.client import Connection
from rolltape.rollouts import Address


class ClientDesk:
    """A `RolloutDesk` that asks the gateway at the other end of `connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(self, rollout_id: str, *, labels: Mapping[str, Any], budget: Mapping[str, Any]) -> Address:
        made = await self._connection.create(rollout_id, labels, budget)
        return Address(
            base_urls=made["base_urls"],
            api_key=made["api_key"],
            captured=made.get("captured", True),
            rebuild=made.get("rebuild", True),
        )

    async def budget_spent(self, rollout_id: str) -> bool:
        state = await self._connection.state(rollout_id)
        return bool(state["ending"] == "budget")

    async def outcome(self, rollout_id: str, *, reward: float | None, ending: str, labels: Mapping[str, Any]) -> None:
        await self._connection.outcome(rollout_id, reward=reward, ending=ending, labels=labels)
