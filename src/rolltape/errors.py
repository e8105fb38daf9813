"""The error tree, and who sees each.

```
RolltapeError
├── ConfigError            the operator, at start-up: a bad option, file or combination
├── RequestError           the caller of a model endpoint or of the control API, in its own dialect
│   ├── RateLimited            too many calls for now; nothing was sampled, and asking again later is right
│   ├── EngineRefused          the engine would not take this request (context overflow, bad tools...)
│   ├── EngineUnavailable      nothing answers at the engine's address; nothing was generated
│   └── EngineBroken           the engine answered garbage or died; tokens may have been generated
├── StoreError             whoever called the store; the gateway turns it into a mark on the rollout
│   ├── ConflictError          this id already exists with another payload
│   ├── FrozenError            the rollout takes no new calls
│   ├── RetiredError           the rollout's evidence was handed over and dropped
│   ├── DamagedError           stored bytes do not match their digest
│   └── ElsewhereError         what is asked for is kept by another's transport, or by nobody
└── EntryError             whoever builds or reads a token entry that no store could hold
```

A bad *recording* is not an error: it is a token entry with named faults (see `record`).
"""


class RolltapeError(Exception):
    """Base of every error that Rolltape raises on purpose.

    `hint` is one sentence on what to do about it, or "" when there is nothing useful to say.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class ConfigError(RolltapeError):
    """An option, file or combination of them that cannot be honoured. Raised before anything is served."""


class RequestError(RolltapeError):
    """A request that gets an error reply, worded by its wire protocol.

    `status` is the HTTP status, `code` the machine-readable reason (`frozen`, `context_length_exceeded`...),
    `param` the request field at fault or None.
    """

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.param = param


class RateLimited(RequestError):
    """More calls than a bound allows. `bound` names it; `retry_after`: seconds until asking again may help."""

    def __init__(self, message: str, *, bound: str, retry_after: float) -> None:
        super().__init__(429, "rate_limited", message)
        self.bound = bound
        self.retry_after = retry_after


class EngineRefused(RequestError):
    """The engine refused the request before sampling anything; `status` is 4xx and the harness's own fault.

    `overflow` is (prompt tokens, context length) where the prompt left no room to sample, else None.
    """

    overflow: tuple[int, int] | None = None

    @classmethod
    def context_overflow(cls, prompt_tokens: int, context_length: int) -> "EngineRefused":
        """The prompt leaves no room to sample. Code and words are those on which harnesses start a compaction."""
        error = cls(
            400,
            "context_length_exceeded",
            f"This model's maximum context length is {context_length} tokens. However, your messages resulted in "
            f"{prompt_tokens} tokens. Please reduce the length of the messages.",
            param="messages",
        )
        error.overflow = (prompt_tokens, context_length)
        return error


class EngineUnavailable(RequestError):
    """The engine could not be reached: nothing was generated, so asking again is safe."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(503, "engine_unavailable", message, hint=hint)


class EngineBroken(RequestError):
    """The engine answered something that is no answer, or died in mid-stream. What came before is evidence."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(502, "engine_broken", message, hint=hint)


class StoreError(RolltapeError):
    """The store could not do what was asked; nothing that was acknowledged before is lost by it."""


class ConflictError(StoreError):
    """The id exists with another payload. The first one is kept."""


class FrozenError(StoreError):
    """The rollout is frozen: calls already admitted may still be recorded, no new one may begin."""


class RetiredError(StoreError):
    """The rollout was retired: its consumer holds the result and its evidence is gone for every source."""


class DamagedError(StoreError):
    """What the disk gave back does not match the digest that was written with it."""


class ElsewhereError(StoreError):
    """This gateway cannot answer: it writes to another's transport and reads nothing back, or records nothing."""


class EntryError(RolltapeError, ValueError):
    """Not a token entry: an id that is no id, an array that is no array. Faulty *content* never raises this."""
