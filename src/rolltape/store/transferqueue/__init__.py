"""The store in a framework's own transport: TransferQueue on Ray, with a journal on each gateway's disk.

store    the contract's methods, over a queue and, in a gateway, a journal
queue    attaching to a controller that exists, and asking it
journal  what this gateway put, durable before it is acknowledged
restore  what a journal holds, given back to a queue that lacks it
events   a rollout as the ordered keys of its partition: pure
payload  entries as tensors and back: pure
"""

from rolltape.store.transferqueue.store import TransferQueueStore

__all__ = ["TransferQueueStore"]
