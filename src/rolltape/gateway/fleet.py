"""Which engine answers a requested model name.

One engine samples the policy, which is what is trained; others may stand beside it and answer a harness's small, fast
or sub-agent models. A name is looked up in this order: an alias that is exactly it, a model that an engine serves (the
policy's first), then the alias with the most letters that fits it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rolltape.config import POLICY
from rolltape.engines import Engine, ServedModel
from rolltape.errors import RequestError

WILD = "*?["


@dataclass(frozen=True, slots=True)
class Chosen:
    """Who answers a call: the engine `name`, with its model `model`."""

    name: str
    engine: Engine
    model: ServedModel

    @property
    def is_policy(self) -> bool:
        """False: what it answers is recorded and never trained."""
        return self.name == POLICY


class Fleet:
    """`engines` by name, that of the policy among them; `aliases`: model name or pattern -> engine."""

    def __init__(self, engines: Mapping[str, Engine], aliases: Mapping[str, str]) -> None:
        self._engines = dict(engines)
        self._exact = {alias: name for alias, name in aliases.items() if not any(c in alias for c in WILD)}
        wild = [(alias, name) for alias, name in aliases.items() if alias not in self._exact]
        self._patterns = sorted(wild, key=lambda pair: -sum(c not in WILD for c in pair[0]))

    async def choose(self, asked: str) -> Chosen:
        """Who answers to `asked`. Raises 404 naming what is served."""
        if asked in self._exact:
            return await self._default(self._exact[asked])
        served = await self._served()
        for chosen in served:
            if chosen.model.name == asked:
                return chosen
        for pattern, name in self._patterns:
            if fnmatchcase(asked, pattern):
                return await self._default(name)
        raise RequestError(
            404,
            "model_not_found",
            f"the model {asked!r} is not served here; there is: {', '.join(chosen.model.name for chosen in served)}",
            param="model",
            hint="name it under model_aliases (--alias) to have the served model answer to it",
        )

    async def listed(self) -> list[tuple[str, Chosen]]:
        """Every name that is answered and who answers it: the policy's models, those of others, then aliases."""
        served = [(chosen.model.name, chosen) for chosen in await self._served()]
        aliased = [(alias, await self._default(name)) for alias, name in self._exact.items()]
        return list(dict([*served, *aliased]).items())

    async def _default(self, name: str) -> Chosen:
        engine = self._engines[name]
        return Chosen(name, engine, (await engine.models())[0])

    async def _served(self) -> list[Chosen]:
        """Every model once: the same name on two engines is the policy's, else the first one's."""
        found: dict[str, Chosen] = {}
        for name, engine in sorted(self._engines.items(), key=lambda pair: pair[0] != POLICY):
            for model in await engine.models():
                found.setdefault(model.name, Chosen(name, engine, model))
        return list(found.values())
