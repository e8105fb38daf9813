"""Routes. An ASGI application: model endpoints under every address form, control, probes.

The order matters: the address prefix comes off first, then the path decides. A path that no protocol knows is a 404
in the dialect of the nearest one, and never touches a rollout.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from rolltape.config import POLICY, ServeConfig
from rolltape.engines import Engine
from rolltape.errors import RequestError
from rolltape.gateway.address import KeyRing, resolve, split_path, with_query_key
from rolltape.gateway.call import CallServer, internal_error, refuse
from rolltape.gateway.control import Control
from rolltape.gateway.exchange import Exchange
from rolltape.gateway.fleet import Chosen, Fleet
from rolltape.gateway.metrics import Metrics
from rolltape.gateway.routes import Routes
from rolltape.gateway.unforeseen import log_unforeseen
from rolltape.harness.kinds import Classify, unclassified
from rolltape.store import CaptureStore
from rolltape.wire import ListedModel, ListsModels, WireProtocol

_JSON = {"content-type": "application/json"}
_OPERATOR_PATHS = ("/control/", "/healthz", "/readyz", "/metrics")


class Gateway:
    """The whole application. Owns nothing that it was given: engine and store are closed by who made them."""

    def __init__(
        self,
        config: ServeConfig,
        engine: Engine,
        store: CaptureStore,
        protocols: Sequence[WireProtocol],
        control_token: str,
        classify: Classify = unclassified,
        others: Mapping[str, Engine] | None = None,
    ) -> None:
        """`engine` samples the policy; `others` are those beside it, by name."""
        self.config, self.engine, self.store = config, engine, store
        self.keys = KeyRing(control_token)
        self.metrics = Metrics()
        self._fleet = Fleet({**(others or {}), POLICY: engine}, config.aliases)
        self.calls = CallServer(config, self._fleet, store, self.metrics, classify)
        self._routes = Routes(protocols)
        self._control: Router = Control(self).router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _close_websocket(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        where = split_path(exchange.raw_path)
        if where.named is None and where.path.startswith(_OPERATOR_PATHS):
            await self._control(scope, receive, send)
            return
        route = self._routes.find(where.path)
        protocol = route.protocol if route else self._routes.nearest(where.path)
        try:
            if route is not None and exchange.method == "POST":
                headers = with_query_key(exchange.headers, exchange.query)
                address = resolve(where, headers, self.keys, auth=self.config.auth_mode, untagged=self.config.untagged)
                async with self.calls.passing(protocol, address):
                    await (self.calls.count if route.counts else self.calls.serve)(exchange, protocol, address)
            else:
                await self._probe(exchange, where.path)
        except RequestError as error:
            await refuse(exchange, protocol, error)
        except Exception as error:
            log_unforeseen(f"{exchange.method} {route.path if route else 'of another path'} failed", error)
            if not exchange.opened:  # else the server cuts what is incomplete
                await refuse(exchange, protocol, internal_error(error))

    async def _probe(self, exchange: Exchange, path: str) -> None:
        """What clients look at before they call: answered, never recorded."""
        if exchange.method not in ("GET", "HEAD"):
            raise self._unknown(exchange.method, path)
        listing = self._routes.listing(path, exchange.headers)
        if listing is not None:
            await self._models(exchange, *listing)
        elif path in ("/", "/v1", "/v1/", "/api/hello"):
            await exchange.respond(200, _JSON, b'{"service":"rolltape"}')
        elif self._routes.find(path):
            raise RequestError(405, "method_not_allowed", f"{path} takes POST")
        else:
            raise self._unknown(exchange.method, path)

    def _unknown(self, method: str, path: str) -> RequestError:
        message = f"{method} {path[:200]} is not served here; model endpoints: {self._routes.sampling}"
        return RequestError(404, "not_found", message)

    async def _models(self, exchange: Exchange, protocol: ListsModels | None, wanted: str) -> None:
        """Every model, or the one that answers to `wanted`, in the words of `protocol`, else in OpenAI's."""
        name = unquote(wanted)
        if name:
            chosen = await self._fleet.choose(name)
            listed = _listed(name, chosen)
            told = protocol.encode_model(listed) if protocol else msgspec.json.encode(_card(name, chosen))
        else:
            every = await self._fleet.listed()
            cards = {"object": "list", "data": [_card(*one) for one in every]}
            told = protocol.encode_models([_listed(*one) for one in every]) if protocol else msgspec.json.encode(cards)
        await exchange.respond(200, _JSON, told)


def _card(name: str, chosen: Chosen) -> dict[str, Any]:
    owner = chosen.engine.kind
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": owner if chosen.is_policy else f"{chosen.name} ({owner})",
        "max_model_len": chosen.model.context_length,
    }


def _listed(name: str, chosen: Chosen) -> ListedModel:
    return ListedModel(name, chosen.model.context_length)


async def _close_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """Codex tries a socket first and falls back to POST when it is refused."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
