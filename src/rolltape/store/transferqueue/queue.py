"""The way to a queue that runs: never makes one, notices when it is another than before.

A TransferQueue controller is a named actor that ends with the driver that made it; `transfer_queue.init()` would then
make an empty one without a word. So the controller is looked up here, and a client of our own is attached to it. One
thread with an event loop owns that client; it looks every second whether the controller is still the same, and fails
what was asked of one that is gone.
"""

import asyncio
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import ray
from tensordict import TensorDict
from transfer_queue.client import AsyncTransferQueueClient

from rolltape.errors import StoreError
from rolltape.store.transferqueue.payload import Cells

log = logging.getLogger("rolltape.store")
T = TypeVar("T")

ANSWER_SECONDS = 10.0
LOOK_SECONDS = 1.0
CATCH_UP_SECONDS = 5.0
_KNOCK_SECONDS = 5.0
_CONTROLLER = {"name": "TransferQueueController", "namespace": "transfer_queue"}
_HINT = "the trainer starts it with transfer_queue.init() and stays alive; a store never makes a queue of its own"
logging.getLogger("transfer_queue.utils.common").setLevel(logging.ERROR)  # else a line on thread counts for each put


class QueueGone(StoreError):
    """There is no controller, or not the one that was asked."""


class Keeper(Protocol):
    """What is done beside the calls, in the queue's loop; what it raises is logged, and it is tried again."""

    async def give_back(self, queue: "Queue") -> None:
        """Another controller was found, the first one included, or a write to this one failed."""

    async def catch_up(self, queue: "Queue") -> None:
        """Some seconds have passed."""


class Queue:
    """The controller of the Ray cluster that this process is connected to, or connects to at `address`.

    Nothing is asked of it before `keeper` has given back what it holds. Raises `StoreError` where there is no cluster,
    or no controller in it.
    """

    def __init__(self, address: str | None, keeper: Keeper) -> None:
        self._keeper = keeper
        self._asked: set[asyncio.Future[Any]] = set()
        self._client: Any = None
        self.controller = ""
        """Names the controller that is attached; "" = none."""
        self._settled = asyncio.Event()
        self._behind = False
        self._ours = _connect(address)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rolltape-transferqueue", daemon=True)
        self._thread.start()
        try:
            self._call(self._attach()).result()
        except BaseException:
            self._stop()
            raise
        self._looking = self._call(self._look())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, run in the queue's loop. It goes on where its caller gives up."""
        if not self._thread.is_alive():
            work.close()
            raise StoreError("the store is closed")
        return await asyncio.shield(asyncio.wrap_future(self._call(work)))

    def close(self) -> None:
        """Blocks until the thread has ended. Idempotent."""
        if self._thread.is_alive():
            self._looking.cancel()
            self._stop()

    # In the queue's loop

    async def at_hand(self) -> None:
        """Return when a controller is there and has what the journal holds; a `StoreError` if that takes long."""
        if self._client is None:
            raise QueueGone("there is no TransferQueue controller now", hint=_HINT)
        try:
            await asyncio.wait_for(self._settled.wait(), ANSWER_SECONDS)
        except TimeoutError:
            raise StoreError("TransferQueue has not taken yet what the journal holds") from None

    def behind(self) -> None:
        """Say that the journal holds what the queue may lack."""
        self._behind = True
        self._settled.clear()

    async def listing(self, partition: str) -> dict[str, dict[str, Any]]:
        """The partition's keys with their tags, oldest first; {} for one that does not exist."""
        found = await self._ask(lambda client: client.async_kv_list(partition))
        return dict(found.get(partition, {}))

    async def listings(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Every partition's."""
        return dict(await self._ask(lambda client: client.async_kv_list()))

    async def put(
        self, partition: str, key: str, *, row: TensorDict | None = None, tag: Mapping[str, Any] | None = None
    ) -> None:
        """Make a key, or write over what it holds."""

        async def write(client: Any) -> None:
            meta = await client.async_kv_retrieve_meta(keys=[key], partition_id=partition, create=True)
            if tag is not None:
                meta.update_custom_meta([dict(tag)])
            if row is not None:
                await client.async_put(row, meta)
            elif tag is not None:
                await client.async_set_custom_meta(meta)

        await self._ask(write)

    async def rows(self, partition: str, keys: Sequence[str], fields: Iterable[str]) -> dict[str, Cells]:
        """The cells of each key that has them all; a key that lost its data is not in the answer."""
        if not keys:
            return {}
        try:
            return await self._ask(lambda client: _fetch(client, partition, list(keys), tuple(fields)))
        except QueueGone:
            raise
        except StoreError:
            if len(keys) == 1:
                log.warning("the queue holds no data of %s in %s", keys[0], partition)
                return {}
        half = len(keys) // 2
        return await self.rows(partition, keys[:half], fields) | await self.rows(partition, keys[half:], fields)

    async def clear(self, partition: str, keys: Sequence[str]) -> None:
        """Remove these keys and nothing else."""

        async def remove(client: Any) -> None:
            meta = await client.async_kv_retrieve_meta(keys=list(keys), partition_id=partition, create=False)
            if meta.size:
                await client.async_clear_samples(meta)

        if keys:
            await self._ask(remove)

    async def _ask(self, what: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        if self._client is None:
            raise QueueGone("there is no TransferQueue controller now", hint=_HINT)
        asked = asyncio.ensure_future(what(self._client))
        self._asked.add(asked)
        try:
            await asyncio.wait({asked}, timeout=ANSWER_SECONDS)
        finally:
            self._asked.discard(asked)
            answered = asked.done() or not asked.cancel()
        if not answered:
            raise StoreError(f"TransferQueue did not answer within {ANSWER_SECONDS:g} seconds")
        if asked.cancelled():
            raise QueueGone("the TransferQueue controller went away", hint=_HINT)
        try:
            return asked.result()
        except Exception as error:  # the boundary: its client wraps everything into RuntimeError
            if await self._is_gone():
                raise QueueGone("the TransferQueue controller went away", hint=_HINT) from error
            raise StoreError(f"TransferQueue: {error}") from error

    async def _look(self) -> None:
        caught_up = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if await self._is_gone():
                    self._detach()
                    await self._attach()
                elif not self._settled.is_set():
                    await self._settle()
                if time.monotonic() - caught_up >= CATCH_UP_SECONDS:
                    await self._keeper.catch_up(self)
                    caught_up = time.monotonic()
            except QueueGone:
                continue
            except Exception:  # the boundary: whatever fails is tried again
                log.exception("TransferQueue cannot be given yet what the journal holds")

    async def _settle(self) -> None:
        self._behind = False
        await self._keeper.give_back(self)
        if not self._behind:  # else a write failed meanwhile
            self._settled.set()

    async def _is_gone(self) -> bool:
        try:
            found = await asyncio.to_thread(_controller)
        except QueueGone:
            return True
        return _name(found) != self.controller

    async def _attach(self) -> None:
        found = await asyncio.to_thread(_controller)
        conf = await asyncio.to_thread(_config, found)
        backend = conf.backend.storage_backend
        client = AsyncTransferQueueClient(f"rolltape-{uuid.uuid4().hex[:8]}", conf.controller.zmq_info, 1)
        client.initialize_storage_manager(manager_type=backend, config=conf.backend[backend])
        self._client, self.controller = client, _name(found)
        await self._settle()

    def _detach(self) -> None:
        self._settled.clear()
        gone, self._client, self.controller = self._client, None, ""
        for asked in list(self._asked):
            asked.cancel()
        if gone is not None:
            gone.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _stop(self) -> None:
        self._call(_in_loop(self._detach)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._ours:
            _disconnect()


async def _in_loop(what: Callable[[], None]) -> None:
    what()
    await asyncio.sleep(0)


async def _fetch(client: Any, partition: str, keys: list[str], fields: tuple[str, ...]) -> dict[str, Cells]:
    meta = await client.async_kv_retrieve_meta(keys=keys, partition_id=partition, create=False)
    if meta.size != len(keys) or not set(fields) <= set(meta.field_names):
        raise StoreError("some keys have no data")
    data = await client.async_get_data(meta.select_fields(list(fields)))
    columns = {name: data[name].unbind() for name in fields}
    return {key: {name: columns[name][at] for name in fields} for at, key in enumerate(keys)}


# Ray

_connected = 0
"""How many queues of this process hold the connection that the first of them opened."""
_connecting = threading.Lock()


def _connect(address: str | None) -> bool:
    """True when this process was not connected before, or only by us."""
    global _connected
    with _connecting:
        if ray.is_initialized() and not _connected:
            return False
        if not _connected:
            try:
                _knock(address)
                ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, ValueError, RuntimeError) as error:
                where = f"at {address}" if address else "here"
                hint = "give `address`, as host:port of its GCS, or set RAY_ADDRESS"
                raise StoreError(f"no Ray cluster answers {where}", hint=hint) from error
        _connected += 1
        return True


def _knock(address: str | None) -> None:
    """Ray itself would try for minutes where nothing listens."""
    host, _, port = (address or os.environ.get("RAY_ADDRESS", "")).rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()


def _disconnect() -> None:
    global _connected
    with _connecting:
        _connected -= 1
        if not _connected:
            ray.shutdown()


def _controller() -> Any:
    try:
        return ray.get_actor(**_CONTROLLER)
    except ValueError as error:
        raise QueueGone("no TransferQueue controller runs in this Ray cluster", hint=_HINT) from error


def _config(controller: Any) -> Any:
    try:
        conf = ray.get(controller.get_config.remote(), timeout=ANSWER_SECONDS)
    except ray.exceptions.RayError as error:
        raise QueueGone("the TransferQueue controller does not answer", hint=_HINT) from error
    if conf is None:
        raise QueueGone("the TransferQueue controller is still starting", hint=_HINT)
    return conf


def _name(controller: Any) -> str:
    return str(controller._actor_id.hex())
