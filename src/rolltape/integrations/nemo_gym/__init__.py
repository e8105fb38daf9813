"""Rolltape's store as NeMo Gym's own sink, source and lineage store.

endpoints  `RolltapeSink` and `RolltapeSource`: Gym's entries in, Gym's snapshots out
lineage    `RolltapeLineage`: Gym's matcher over what the store holds
convert    Gym's record as a dict, to an entry and back without loss. Pure
captures   `import_gym_captures`: Gym's capture files into a store

Gym's package is imported where one of its objects is made: by the source and the lineage store.
"""

from rolltape.integrations.nemo_gym.captures import ImportedRollout, import_gym_captures
from rolltape.integrations.nemo_gym.endpoints import RolltapeSink, RolltapeSource
from rolltape.integrations.nemo_gym.lineage import RolltapeLineage

__all__ = ["ImportedRollout", "RolltapeLineage", "RolltapeSink", "RolltapeSource", "import_gym_captures"]
