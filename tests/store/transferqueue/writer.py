"""A gateway's process for tests: puts what `tests/store/crashing.py` puts, into a queue, until it is killed or done."""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import crashing

from rolltape.store.transferqueue import TransferQueueStore


async def main(address: str, namespace: str, journal: str, log_path: str) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = TransferQueueStore(journal, address=address, namespace=namespace)
    first = len(await store.rollouts())
    for round_number in range(first, first + 400, 4):
        ids = [f"{round_number + i}" for i in range(4)]
        await asyncio.gather(*(crashing.write_chain(store, rollout_id, log) for rollout_id in ids))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
