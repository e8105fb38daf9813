"""Routes. An ASGI application: model endpoints under every address form, control, probes.

The order matters: the address prefix comes off first, then the path decides. A path that no protocol knows is a 404
in the dialect of the nearest one, and never touches a rollout.
"""

import logging
from collections.abc import Sequence

import msgspec
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from rolltape.config import ServeConfig
from rolltape.engines import Engine
from rolltape.errors import RequestError
from rolltape.gateway.address import KeyRing, resolve, split_path
from rolltape.gateway.call import CallServer, internal_error, refuse
from rolltape.gateway.control import Control
from rolltape.gateway.exchange import Exchange
from rolltape.gateway.metrics import Metrics
from rolltape.harness.kinds import Classify, unclassified
from rolltape.store import CaptureStore
from rolltape.wire import WireProtocol

log = logging.getLogger("rolltape.gateway")

_JSON = {"content-type": "application/json"}
_COMMON_DIALECT = "openai_chat"
"""Words errors on paths that belong to no protocol."""
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
    ) -> None:
        self.config, self.engine, self.store = config, engine, store
        self.keys = KeyRing(control_token)
        self.metrics = Metrics()
        self.calls = CallServer(config, engine, store, self.metrics, classify)
        self._protocols = {path: protocol for protocol in protocols for path in protocol.paths}
        self._counters = {path: protocol for protocol in protocols for path in protocol.counting_paths}
        self._default = next((p for p in protocols if p.name == _COMMON_DIALECT), protocols[0])
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
        counts = self._counters.get(where.path)
        protocol = counts or self._protocols.get(where.path)
        try:
            if protocol is not None and exchange.method == "POST":
                address = resolve(
                    where, exchange.headers, self.keys, auth=self.config.auth_mode, untagged=self.config.untagged
                )
                await (self.calls.count if counts else self.calls.serve)(exchange, protocol, address)
            else:
                await self._probe(exchange, where.path)
        except RequestError as error:
            await refuse(exchange, protocol or self._nearest(where.path), error)
        except Exception as error:
            if exchange.opened:
                raise
            log.exception("%s %s failed", exchange.method, where.path[:200])
            await refuse(exchange, protocol or self._nearest(where.path), internal_error(error))

    def _nearest(self, path: str) -> WireProtocol:
        """The protocol below one of whose routes `path` lies, to word an error on a path that is no route itself."""
        above = (p for route, p in self._protocols.items() if path.startswith(f"{route}/"))
        return next(above, self._default)

    async def _probe(self, exchange: Exchange, path: str) -> None:
        """What clients look at before they call: answered, never recorded."""
        if exchange.method not in ("GET", "HEAD"):
            raise self._unknown(exchange.method, path)
        if path == "/v1/models" or path.startswith("/v1/models/"):
            await self._models(exchange, path)
        elif path in ("/", "/v1", "/v1/", "/api/hello"):
            await exchange.respond(200, _JSON, b'{"service":"rolltape"}')
        elif path in self._protocols or path in self._counters:
            raise RequestError(405, "method_not_allowed", f"{path} takes POST")
        else:
            raise self._unknown(exchange.method, path)

    def _unknown(self, method: str, path: str) -> RequestError:
        served = ", ".join(sorted(self._protocols))
        return RequestError(404, "not_found", f"{method} {path[:200]} is not served here; model endpoints: {served}")

    async def _models(self, exchange: Exchange, path: str) -> None:
        served = await self.engine.models()
        cards = [
            {
                "id": m.name,
                "object": "model",
                "created": 0,
                "owned_by": self.engine.kind,
                "max_model_len": m.context_length,
            }
            for m in served
        ]
        wanted = path.removeprefix("/v1/models").strip("/")
        if not wanted:
            await exchange.respond(200, _JSON, msgspec.json.encode({"object": "list", "data": cards}))
            return
        name = await self.calls.model_for(wanted)
        card = next(card for card in cards if card["id"] == name)
        await exchange.respond(200, _JSON, msgspec.json.encode({**card, "id": wanted}))


async def _close_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """Codex tries a socket first and falls back to POST when it is refused."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
