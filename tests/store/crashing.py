"""A process that puts chains of entries until it is killed, and notes each acknowledged one in a synced log of its own.

What it puts follows from the ids alone, so that the test can say what must be there. The place is a directory or the
connection string of a PostgreSQL database.
"""

import asyncio
import os
import random
import sys

from rolltape.record import TokenEntry
from rolltape.store import CaptureStore, TokenCaptureStore
from rolltape.testing.contracts import entry

CALLS = 40


def expected(rollout_id: str, call_id: str) -> TokenEntry:
    """The entry that belongs to these ids: call n extends call n - 1."""
    number = int(call_id[1:])
    draw = random.Random(rollout_id)
    sequence: list[int] = []
    for step in range(number + 1):
        prompt = sequence + [draw.randrange(150_000) for _ in range(50)]
        generation = [draw.randrange(150_000) for _ in range(20)]
        sequence = prompt + generation
        if step == number:
            return entry(call_id, prompt, generation, rollout_id=rollout_id, request_text=repr(prompt).encode())
    raise AssertionError


def opened(place: str) -> CaptureStore:
    if not place.startswith("postgresql:"):
        return TokenCaptureStore(place)
    from rolltape.store.postgres import PostgresStore  # installed on its own

    return PostgresStore(place)


async def write_chain(store: CaptureStore, rollout_id: str, log: int) -> None:
    for number in range(CALLS):
        call_id = f"k{number}"
        await store.begin_call(rollout_id, call_id)
        await store.put(expected(rollout_id, call_id))
        os.write(log, f"{rollout_id} {call_id} .\n".encode())
        os.fsync(log)


async def main(place: str, log_path: str) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = opened(place)
    round_number = len(await store.rollouts())
    while True:
        ids = [f"{round_number}-{i}" for i in range(8)]
        await asyncio.gather(*(write_chain(store, rollout_id, log) for rollout_id in ids))
        round_number += 8


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
