"""The llama.cpp server of this process, from the `xllamacpp` wheel.

It listens on a free port of 127.0.0.1 and wants a random key, because an agent has a shell on this machine.
"""

import importlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rolltape.errors import ConfigError

PROMPT_CACHE_MIB = 1024
"""Prompts that gave up their slot, kept in memory: a chain's next call need not compute its prefix again."""


@dataclass(slots=True)
class EmbeddedServer:
    """A running server. It stops when `native` is dropped."""

    native: Any
    url: str
    api_key: str

    def stop(self) -> None:
        """Blocks until the server's threads have ended. Idempotent."""
        self.native = None


def start(
    model: Path,
    *,
    slots: int,
    context: int,
    threads: int | None = None,
    chat_template: str | None = None,
    cache_prompt: bool = False,
) -> EmbeddedServer:
    """Load `model` and serve it; blocks for about a second. `context` is in tokens and for each slot.

    Raises `ConfigError` when xllamacpp is missing or cannot load the model.
    """
    xllamacpp = _xllamacpp()
    key = secrets.token_urlsafe(24)
    params = _params(xllamacpp, model, slots=slots, context=context, threads=threads)
    params.api_keys = [key]
    params.cache_ram_mib = PROMPT_CACHE_MIB if cache_prompt else 0
    if chat_template is not None:
        params.chat_template = chat_template
    try:
        native = xllamacpp.Server(params)
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(f"llama.cpp cannot load {str(model)!r}: {error}") from error
    return EmbeddedServer(native, native.listening_address, key)


def _xllamacpp() -> ModuleType:
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        raise ConfigError(
            "The embedded llama.cpp engine needs the package xllamacpp.", hint="pip install 'rolltape[llamacpp]'"
        ) from error


def _spare_cores() -> int:
    """All cores but one. The threads meet at a spinning barrier after every operation: where one of them has to share
    its core with the harnesses, the gateway or anything else, all of them wait for it (two threads on two cores, one of
    them busy: 2.4 tokens a second; one thread: 17).
    """
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _params(xllamacpp: ModuleType, model: Path, *, slots: int, context: int, threads: int | None) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_parallel, params.n_ctx = slots, slots * context
    params.ctx_shift = False  # a shifted context would drop prompt ids behind our back
    params.prefill_assistant = False  # a last assistant message is a message, not the beginning of the reply
    params.flash_attn_type = 0  # off: it decodes long contexts a third slower on a CPU
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or _spare_cores()
    params.n_gpu_layers = 0
    params.use_jinja = params.endpoint_slots = params.endpoint_props = True
    params.ui = False
    params.verbosity = -1
    return params
