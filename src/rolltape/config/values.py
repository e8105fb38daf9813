"""What a gateway can be told, as frozen values. What may hold a secret is left out of every representation."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from rolltape.config import capture
from rolltape.config.capture import AgentOptions, TokenIdCapture

POLICY = "policy"
"""Among engines, the name of the one that samples what is trained."""


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What samples. `kind` is a registered engine; `options` go to its constructor."""

    kind: str = "llamacpp"
    url: str | None = None
    model: str | None = None
    options: dict[str, Any] = {}

    def __repr__(self) -> str:
        return capture.shown(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("kind", self.kind), ("url", self.url), ("model", self.model)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds, in seconds and bytes."""

    max_body_bytes: Annotated[int, msgspec.Meta(gt=0)] = 32 * 2**20
    """Largest request body, as sent and as expanded."""
    body_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """How long a request body may take to arrive."""
    keep_alive_seconds: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    """Silence in a stream after which a keep-alive frame is sent; clients give up after 60 s and more."""
    first_byte_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """How long an error can still get its own HTTP status before a stream is opened to keep its client alive."""
    durable_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long a finished reply waits for its durable entry before it is released and the rollout marked."""
    settle_seconds: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """How long a freeze waits for calls in flight."""
    call_seconds: Annotated[float, msgspec.Meta(gt=0)] = 3600.0
    """How long one call may be sampled for; what came by then is kept as evidence."""
    calls_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of all rollouts together, in each gateway process; over it a call is told to come again. None: unbounded."""
    calls_at_once: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of all rollouts together, in each gateway process."""
    rollout_calls_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of each rollout whose budget does not say otherwise (`calls_per_minute`)."""
    rollout_calls_at_once: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of each rollout whose budget does not say otherwise (`calls_at_once`)."""
    max_header_bytes: Annotated[int, msgspec.Meta(gt=0)] = 64 * 2**10
    """Largest head of a request: its line and headers."""
    header_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long the head of a request may take to arrive."""
    stalled_seconds: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    """How long a client may take nothing of what waits for it before its connection is cut."""


class ContinueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a recorded sequence is gone on from in the mode `continue`."""

    tokenizer: str | None = None
    """The model's tokenizer directory, for the `renderers` library; None: the engine's own template alone."""
    renderer: str | None = None
    """Which of the library's renderers writes this model's turns, for example qwen3. None: the library decides."""


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the file store lets go of evidence. The gateway removes it in the background."""

    days: Annotated[float, msgspec.Meta(ge=0)] = 7.0
    """How long what a consumer has accepted stays readable. 0: it is removed at once."""
    quota_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """How much is kept of rollouts frozen that long ago which nobody accepted (masked or failed builds); the oldest go
    first. None: all."""


class ServeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that `rolltape serve` can be told."""

    engine: EngineConfig = EngineConfig()
    """What samples the policy; in a file it may stand as `policy` among `engines`."""
    engines: dict[str, EngineConfig] = {}
    """Further engines by name, for `model_aliases`. What they answer is recorded and never trained."""
    dir: str = "rolltape-data"
    """Where the store lives: node-local disk."""
    host: str = "127.0.0.1"
    port: int = 8787
    """0 = any free port; the ready line tells it."""
    auth: Literal["open", "keys"] | None = None
    """open: a path or header names the rollout. keys: its API key must. None: open on loopback, keys elsewhere."""
    untagged: Literal["serve", "refuse"] = "serve"
    """What happens to a model call that names no rollout."""
    strict: bool = False
    """True: a call whose entry cannot be made durable fails. False: it succeeds and the rollout is marked."""
    mode: Literal["observe", "continue"] = "observe"
    """observe: the engine renders every prompt. continue: a call that goes on from a recorded one is given its ids and
    the new messages alone, where that can be proved exact."""
    continuing: ContinueConfig = ContinueConfig()
    texts: bool = True
    """Keep requests and replies as text beside the tokens, for people."""
    sampling_overrides: dict[str, Any] = {}
    """Applied last, over everything a harness sends."""
    call_policy: dict[str, Any] = {}
    """What becomes of each kind of call when rollouts are rebuilt, and how rows share a rollout's weight."""
    model_aliases: tuple[str, ...] | dict[str, str] = ()
    """Further model names, and what answers to each: `NAME: ENGINE`, or a list of names that the policy answers to
    (`NAME=ENGINE` for another). "*" = any, "claude-haiku-*" = all that begin so; the longest that fits decides."""
    control_token: str | None = None
    limits: Limits = Limits()
    retention: Retention = Retention()
    token_id_capture: TokenIdCapture | None = None
    """Whose calls are recorded, and where they go. None: every call that names a rollout, to the file store."""
    agents: dict[str, AgentOptions] = {}
    """Which agents opted in, by name. Empty: every one did."""

    def __repr__(self) -> str:
        return capture.shown(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = ("engine", "dir", "host", "port", "token_id_capture")
        return [(name, getattr(self, name)) for name in names]

    @property
    def loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def auth_mode(self) -> Literal["open", "keys"]:
        return self.auth or ("open" if self.loopback else "keys")

    @property
    def aliases(self) -> Mapping[str, str]:
        """Model name or pattern -> the engine that answers to it."""
        if isinstance(self.model_aliases, dict):
            return self.model_aliases
        pairs = (alias.partition("=") for alias in self.model_aliases)
        return {name: engine or POLICY for name, _, engine in pairs}

    @property
    def capturing(self) -> bool:
        """False: nothing is recorded, whatever an address says."""
        return self.token_id_capture is None or self.token_id_capture.enabled

    @property
    def rebuilds(self) -> bool:
        """False: this gateway and a run on it stop after the write."""
        return self.token_id_capture is None or self.token_id_capture.rebuild_response

    @property
    def destination(self) -> str:
        """Where entries go, for people."""
        if not self.capturing:
            return "NOTHING IS CAPTURED"
        sink = self.token_id_capture.sink if self.token_id_capture else None
        return f"sink {sink}" if sink else f"store {self.dir}"

    def opted_in(self, labels: Mapping[str, Any]) -> bool:
        """Whether a rollout with these labels is recorded, where its address alone does not decide."""
        return self.capturing and capture.opted_in(self.token_id_capture, self.agents, labels)

    def warnings(self) -> tuple[str, ...]:
        """What looks configured and is not, in sentences."""
        return tuple(capture.warnings(self.token_id_capture, self.agents))
