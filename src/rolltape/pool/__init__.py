"""The pool: rollouts that outlive the run that made them, in Parquet, with where each comes from.

```
POOL/pool.json                                     what this is, and of which format
POOL/rollouts/run=R/policy=V/PART.parquet          one line a rollout: provenance, verdict, reward
POOL/rows/run=R/policy=V/PART.parquet              one line a training row: ids, mask, log-probs, spans
POOL/labels | tombstones | sets/PART.parquet       what was said of rollouts later, what is gone, what was drawn
POOL/lineage/ID.json                               what each derived set and each batch of labels came from
```

Parts are only ever added, under names that nobody else can have, so any number of writers needs no lock, and a listing
is the manifest. The part in `rollouts` is written last: once it is there, so are its rows. A rollout that is found in
several parts (it was added twice, or a compaction copied it) counts once, from the newest. Nothing is deleted in place:
labels are added, tombstones hide, and compaction alone removes files, a good while after it copied what they held.
"""

from rolltape.errors import ConfigError

try:
    import duckdb  # noqa: F401
    import pyarrow  # noqa: F401
except ImportError as missing:
    raise ConfigError(f"the pool needs the package {missing.name}", hint="pip install 'rolltape[pool]'") from missing

from rolltape.pool.filtering import Filtered
from rolltape.pool.filters import Candidate, Filter
from rolltape.pool.pool import Added, Pool
from rolltape.pool.provenance import Provenance, provenance_of
from rolltape.pool.retention import Retained
from rolltape.pool.sets import Derived, Lineage

__all__ = [
    "Added",
    "Candidate",
    "Derived",
    "Filter",
    "Filtered",
    "Lineage",
    "Pool",
    "Provenance",
    "Retained",
    "provenance_of",
]
