"""Configuration: one strict YAML file, then flags on top, frozen from then on.

Unknown keys are errors that name the nearest known one: a run with a typo must not look configured. Secrets are never
printed: what may hold one is left out of every representation and every message.

`file` reads and resolves, `values` says what there is, `capture` whose calls are recorded and where they go.
"""

from rolltape.config.capture import AgentOptions, TokenIdCapture
from rolltape.config.file import read_config
from rolltape.config.values import POLICY, ContinueConfig, EngineConfig, Limits, Retention, ServeConfig

__all__ = [
    "POLICY",
    "AgentOptions",
    "ContinueConfig",
    "EngineConfig",
    "Limits",
    "Retention",
    "ServeConfig",
    "TokenIdCapture",
    "read_config",
]
