"""The Python client of a gateway's control API.

    async with rolltape.client.connect(url, token).rollout() as rollout:
        ...  # start a harness with rollout.base_urls["openai"] and rollout.api_key
        await rollout.finish(reward=1.0)

`Connection.source()` is a `TokenSource` over the same API, for a trainer that does not sit beside the store.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from rolltape.errors import ConflictError, RequestError, RetiredError, StoreError
from rolltape.record import TokenCaptureSnapshot, TokenEntry

_TIMEOUT = aiohttp.ClientTimeout(total=600, connect=10)


class Connection:
    """A connection to one gateway. Opens its session on first use.

    The last of its rollouts to end closes it; used as a context manager, it stays open until that ends.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None
        self._users = 0

    def rollout(
        self,
        id: str | None = None,
        *,
        labels: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
    ) -> "Rollout":
        """A rollout to be announced when it is entered. `budget`: calls, tokens, seconds; None = unbounded."""
        return Rollout(self, id, dict(labels or {}), dict(budget or {}))

    def source(self) -> "RemoteSource":
        """The gateway's store as a `TokenSource`."""
        return RemoteSource(self)

    async def create(
        self, rollout_id: str | None, labels: Mapping[str, Any], budget: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Announce a rollout: `{rollout_id, api_key, base_urls}`. Raises `ConflictError` if the id is taken."""
        body = {"labels": dict(labels), "budget": dict(budget)}
        if rollout_id is not None:
            body["rollout_id"] = rollout_id  # type: ignore[assignment]
        return await self._call("POST", "/control/rollouts", body)

    async def rollouts(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self._call("GET", "/control/rollouts"))["rollouts"]
        return listed

    async def state(self, rollout_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/control/rollouts/{rollout_id}")

    async def freeze(self, rollout_id: str) -> dict[str, Any]:
        """`{snapshot_id, version, incomplete, n_entries}`."""
        return await self._call("POST", f"/control/rollouts/{rollout_id}/freeze", {})

    async def entries(self, rollout_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/control/rollouts/{rollout_id}/entries")

    async def rows(self, rollout_id: str, *, delivery: str = "forest") -> dict[str, Any]:
        return await self._call("GET", f"/control/rollouts/{rollout_id}/rows?delivery={delivery}")

    async def retire(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        body = {"snapshot_id": snapshot_id, "version": version}
        return bool((await self._call("POST", f"/control/rollouts/{rollout_id}/retire", body))["retired"])

    async def outcome(
        self,
        rollout_id: str,
        *,
        reward: float | None,
        ending: str | None = None,
        labels: Mapping[str, Any] | None = None,
    ) -> None:
        body = {"reward": reward, "ending": ending, "labels": dict(labels or {})}
        await self._call("POST", f"/control/rollouts/{rollout_id}/outcome", body)

    async def set_policy(self, *, version: str | None = None, state: str | None = None) -> dict[str, Any]:
        return await self._call("POST", "/control/policy", {"version": version, "state": state})

    async def models(self) -> dict[str, int | None]:
        """The models served, the default one first, each with its context length in tokens (None = not known)."""
        return {card["id"]: card["max_model_len"] for card in (await self._call("GET", "/v1/models"))["data"]}

    async def close(self) -> None:
        """Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if self._users == 0:
            await self.close()

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT)
        try:
            async with self._session.request(method, self.url + path, json=body) as response:
                answer: dict[str, Any] = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            message = f"the gateway at {self.url} does not answer: {error}"
            raise StoreError(message, hint="is `rolltape serve` running there?") from error
        if response.status >= 400:
            raise _error(response.status, answer)
        return answer


def _error(status: int, answer: Any) -> RequestError | StoreError:
    told = answer.get("error", {}) if isinstance(answer, dict) else {}
    code, message, hint = told.get("code", "error"), told.get("message", f"status {status}"), told.get("hint", "")
    kinds: dict[str, type[StoreError]] = {"conflict": ConflictError, "retired": RetiredError, "store_error": StoreError}
    if code in kinds:
        return kinds[code](message, hint=hint)
    return RequestError(status, code, message, hint=hint)


class Rollout:
    """One announced rollout. Leaving it by an exception notes the ending `crashed`, with no reward."""

    def __init__(self, connection: Connection, id: str | None, labels: dict[str, Any], budget: dict[str, Any]) -> None:
        self._connection, self._asked, self._labels, self._budget = connection, id, labels, budget
        self._finished = False
        self.rollout_id = ""
        self.api_key = ""
        self.base_urls: Mapping[str, str] = {}

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        try:
            made = await self._connection.create(self._asked, self._labels, self._budget)
        except BaseException as error:
            await self._connection.__aexit__(type(error), error, None)
            raise
        self.rollout_id, self.api_key, self.base_urls = made["rollout_id"], made["api_key"], made["base_urls"]
        return self

    async def finish(
        self, *, reward: float | None = None, ending: str = "finished", labels: Mapping[str, Any] | None = None
    ) -> None:
        """Note the outcome. Reward None = none is known."""
        await self._connection.outcome(self.rollout_id, reward=reward, ending=ending, labels=labels)
        self._finished = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not self._finished:
                await self.finish(ending="crashed")
        finally:
            await self._connection.__aexit__(kind, error, trace)


class RemoteSource:
    """A `TokenSource` over the control API. Closing it closes only what it opened: nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """One atomic snapshot: the entries are those of the frozen version, or the freeze is asked again."""
        while True:
            frozen = await self._connection.freeze(rollout_id)
            held = await self._connection.entries(rollout_id)
            if (held["snapshot_id"], held["version"]) == (frozen["snapshot_id"], frozen["version"]):
                break
        return TokenCaptureSnapshot(
            rollout_id=rollout_id,
            entries=tuple(TokenEntry.from_json(entry) for entry in held["entries"]),
            incomplete=held["incomplete"],
            snapshot_id=held["snapshot_id"],
            version=held["version"],
            incomplete_reasons=tuple(held["incomplete_reasons"]),
            outcome=held["outcome"],
        )

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        return await self._connection.retire(rollout_id, snapshot_id=snapshot_id, version=version)

    async def close(self) -> None:
        return


def connect(url: str, token: str) -> Connection:
    """A connection to the gateway at `url`, with its control token. Nothing is sent yet."""
    return Connection(url, token)
