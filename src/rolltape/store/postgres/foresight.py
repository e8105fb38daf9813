"""What the jobs of a batch will ask, asked at once: their rollouts, locked; their calls; numbers for their entries.

The answers hold until this transaction changes the rows, and whoever changes them says so (`Connection.learn`). A job
that asks something else, or the same again, asks the server.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rolltape.store.postgres.session import Session
from rolltape.store.tables import rollouts
from rolltape.store.tables.grouping import Job

_CALLS = """
SELECT c.rollout_id, c.call_id, (SELECT step_index FROM intents WHERE rollout = r.id AND call_id = c.call_id),
    (SELECT digest FROM entries WHERE rollout = r.id AND kind = 0 AND call_id = c.call_id)
FROM unnest(?::text[], ?::text[]) AS c(rollout_id, call_id) JOIN rollouts r ON r.rollout_id = c.rollout_id
"""


def foresee(session: Session, batch: Sequence[Job]) -> None:
    """Lock what the batch will change and learn what it will ask, in one round trip; in two where rollouts are new.

    `batch` is ordered by rollout. Numbers are drawn under the locks, so they ascend within a rollout. A job without a
    key may change any rollout: then each asks for itself.
    """
    keys = sorted({job.key for job in batch})
    if not keys[0] or any("\0" in key for key in keys):
        return
    calls = list({(job.key, job.call) for job in batch if job.call is not None})
    locked = session.execute(rollouts.FIND_ALL + session.row_lock, (keys,))
    known = session.execute(_CALLS, ([key for key, _ in calls], [call for _, call in calls]))
    session.stock(len(calls))
    found = {row[1]: row for row in locked.fetchall()}
    made = {row[1]: row for row in _make(session, batch, found)}
    for rollout_id, row in (found | made).items():
        session.learn(rollouts.FIND + session.row_lock, (rollout_id,), row)
    for rollout_id, call_id, *answer in known.fetchall():
        if rollout_id in found:  # any other was made by another node meanwhile, and is not locked
            session.learn(rollouts.KNOWN, (found[rollout_id][0], call_id) * 2, tuple(answer))
    for rollout_id, call_id in calls:
        if rollout_id in made:
            session.learn(rollouts.KNOWN, (made[rollout_id][0], call_id) * 2, (None, None))


def _make(session: Session, batch: Sequence[Job], found: Mapping[str, Any]) -> list[Any]:
    """The rows of rollouts whose first job makes them; without those that another node made first."""
    first = {job.key: job.call for job in reversed(batch) if job.key not in found}
    new = sorted(key for key, call in first.items() if call is not None)
    return session.execute(rollouts.MAKE_ALL, (time.time(), new)).fetchall() if new else []
