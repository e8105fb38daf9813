"""The `renderers` library behind our Protocol: it knows the templates of many models, and writes only what is new.

A few milliseconds at any length, where writing the whole prompt anew takes as long as the prompt. It says None where a
template changes the history itself. Two things are checked: what it gives begins with the recorded ids; and where the
recorded prompt was rendered by the engine, the library renders the same ids of the same messages, or else the server
has a template of its own and the library cannot speak for it.
"""

import asyncio
import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

from rolltape.chat import ChatRequest
from rolltape.errors import ConfigError, EntryError
from rolltape.render.turns import CannotContinue, Recorded, Turn
from rolltape.tokens import IntArray, common_prefix, token_ids

SWITCHES = 16
"""Renderers that are kept, one for each set of a request's `chat_template_kwargs`."""


class LibraryExtender:
    """See `Extender`. `tokenizer` is the model's directory; `renderer` names the library's configuration for it, for
    example "qwen3" (None = what the library makes of the directory, which often is one that cannot go on).

    Raises `ConfigError` where the library is missing, or knows no such renderer.
    """

    name = "renderers"

    def __init__(self, tokenizer: str | Path, renderer: str | None = None) -> None:
        try:
            renderers: Any = importlib.import_module("renderers")
            transformers: Any = importlib.import_module("transformers")
        except ImportError as error:
            raise ConfigError(
                f"going on by the renderers library needs the package {error.name}",
                hint="pip install 'rolltape[renderers]'",
            ) from error
        try:
            loaded = transformers.AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{str(tokenizer)!r} holds no tokenizer: {error}") from error
        self._create = partial(renderers.create_renderer, loaded, *_configuration(renderers, renderer))
        self._renderers: dict[str, Any] = {}

    async def extend(self, recorded: Recorded, request: ChatRequest, turn: Turn) -> IntArray:
        renderer = self._for(request)
        tools = list(request.tools) or None
        before, sampled = recorded.sequence[: recorded.prompt_tokens], recorded.sequence[recorded.prompt_tokens :]
        if recorded.rendered:
            asked = [message.to_openai() for message in request.messages[: turn.at]]
            told = await asyncio.to_thread(renderer.render_ids, asked, tools=tools, add_generation_prompt=True)
            if told != before.tolist():
                raise CannotContinue("the renderer writes these messages otherwise than the engine")
        news = [message.to_openai() for message in turn.news]
        said = await asyncio.to_thread(
            renderer.bridge_to_next_turn, before.tolist(), sampled.tolist(), news, tools=tools
        )
        if said is None:
            raise CannotContinue("the renderer does not go on from this turn")
        try:
            ids = token_ids(said.token_ids)
        except EntryError as error:
            raise CannotContinue(f"the renderer gave no ids: {error.message}") from error
        if len(ids) <= len(recorded.sequence) or common_prefix(ids, recorded.sequence) < len(recorded.sequence):
            raise CannotContinue("what the renderer wrote does not begin with the recorded ids")
        return ids

    def _for(self, request: ChatRequest) -> Any:
        """The renderer under the request's own switches for the template."""
        if request.extra.get("reasoning_effort") is not None:
            raise CannotContinue("only the engine knows what its template makes of reasoning_effort")
        switches = request.extra.get("chat_template_kwargs") or {}
        key = json.dumps(switches, sort_keys=True)
        if key not in self._renderers:
            if len(self._renderers) >= SWITCHES:
                raise CannotContinue(f"the rollouts ask for more than {SWITCHES} sets of template switches")
            self._renderers[key] = self._create(chat_template_kwargs=switches)
        return self._renderers[key]


def _configuration(renderers: Any, name: str | None) -> list[Any]:
    if name is None:
        return []
    try:
        return [renderers.config_from_name(name)]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"the renderers library has no {name!r}: {error}") from error
