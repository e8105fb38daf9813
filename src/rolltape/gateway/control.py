"""The control API: rollouts, freezing, rows, outcomes, policy. Every route wants the control token, probes apart.

Errors are JSON: `{"error": {"code", "message", "hint"}}`. Frozen snapshots are named by `snapshot_id` and `version`,
so a trainer in another process can freeze, read and retire here exactly as it would beside the store.
"""

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from rolltape.errors import ConflictError, ElsewhereError, RequestError, RetiredError, StoreError
from rolltape.gateway.address import presented_keys
from rolltape.gateway.admission import Budget
from rolltape.gateway.call import internal_error
from rolltape.rebuild import DeliveryForm, rebuild
from rolltape.record import is_rollout_id
from rolltape.store import PolicyState

if TYPE_CHECKING:
    from rolltape.gateway.app import Gateway

log = logging.getLogger("rolltape.gateway")

Handler = Callable[[Request], Awaitable[Any]]
Body = TypeVar("Body")
_LARGEST_BODY = 2**20


class NewRollout(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /control/rollouts`. Without an id, one is made."""

    rollout_id: str | None = None
    labels: dict[str, Any] = {}
    budget: Budget = Budget()


class OutcomeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST .../outcome`. `reward` null = none is known (a crash is not a low reward)."""

    reward: float | None = None
    ending: str | None = None
    labels: dict[str, Any] = {}


class RetireBody(msgspec.Struct, forbid_unknown_fields=True):
    snapshot_id: str
    version: int


class PolicyBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /control/policy`; what is left out stays as it is."""

    version: str | int | None = None
    state: str | None = None


class Control:
    """The routes of one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        one = "/control/rollouts/{rollout_id}"
        self.router = Router(
            [
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._guarded(self._metrics)),
                Route("/control/rollouts", self._guarded(self._create), methods=["POST"]),
                Route("/control/rollouts", self._guarded(self._list)),
                Route(one, self._guarded(self._one)),
                Route(f"{one}/freeze", self._guarded(self._freeze), methods=["POST"]),
                Route(f"{one}/entries", self._guarded(self._entries)),
                Route(f"{one}/rows", self._guarded(self._rows)),
                Route(f"{one}/retire", self._guarded(self._retire), methods=["POST"]),
                Route(f"{one}/outcome", self._guarded(self._outcome), methods=["POST"]),
                Route("/control/policy", self._guarded(self._policy), methods=["POST"]),
                Route("/control/policy", self._guarded(self._policy_now)),
            ],
            default=self._not_found,
        )

    def _guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """`handler` behind the control token, its errors as JSON."""

        async def guarded(request: Request) -> Response:
            try:
                self._demand_token(request)
                return _json(200, await handler(request))
            except RequestError as error:
                return _error(error)
            except ConflictError as error:
                return _error(RequestError(409, "conflict", error.message, hint=error.hint))
            except RetiredError as error:
                return _error(RequestError(410, "retired", error.message, hint=error.hint))
            except ElsewhereError as error:
                return _error(RequestError(501, "elsewhere", error.message, hint=error.hint))
            except StoreError as error:
                return _error(RequestError(503, "store_error", error.message, hint=error.hint))
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                log.exception("%s %s failed", request.method, request.url.path)
                return _error(internal_error(error))

        return guarded

    def _demand_token(self, request: Request) -> None:
        if not any(map(self._gateway.keys.is_control, presented_keys(request.headers))):
            raise RequestError(401, "unauthorized", "this route wants the control token as a bearer")

    async def _not_found(self, scope: Any, receive: Any, send: Any) -> None:
        error = RequestError(404, "not_found", f"{scope['path'][:200]} is no route of the control API")
        await _error(error)(scope, receive, send)

    async def _healthz(self, request: Request) -> Response:
        return _json(200, {"status": "ok"})

    async def _readyz(self, request: Request) -> Response:
        """Ready = the engine takes calls, the last one brought its exact ids, and no mark waits for the store."""
        calls = self._gateway.calls
        engine, pending = await self._gateway.engine.healthy(), len(calls.marks)
        ready = engine and calls.ids_arrive and not pending
        told = {"ready": ready, "engine": engine, "ids_arrive": calls.ids_arrive, "unwritten_marks": pending}
        return _json(200 if ready else 503, told)

    async def _metrics(self, request: Request) -> Response:
        return Response(self._gateway.metrics.render(), media_type="text/plain; version=0.0.4")

    async def _create(self, request: Request) -> dict[str, Any]:
        body = await _body(request, NewRollout)
        rollout_id = _checked_id(body.rollout_id) if body.rollout_id is not None else f"r{uuid.uuid4().hex}"
        if "budget" in body.labels:
            raise RequestError(400, "bad_label", "the label `budget` is taken: give `budget` beside `labels`")
        budget = msgspec.to_builtins(body.budget)
        labels = {**body.labels, **({"budget": budget} if budget else {})}
        await self._gateway.store.create_rollout(rollout_id, labels)
        base = f"{request.url.scheme}://{request.url.netloc}/rollout/{rollout_id}"
        urls = {"openai": f"{base}/v1", "anthropic": base, "gemini": base}
        config = self._gateway.config
        return {
            "rollout_id": rollout_id,
            "api_key": self._gateway.keys.key(rollout_id),
            "base_urls": urls,
            "captured": config.opted_in(labels),
            "rebuild": config.rebuilds,
        }

    async def _list(self, request: Request) -> dict[str, Any]:
        return {"rollouts": await self._gateway.store.rollouts()}

    async def _one(self, request: Request) -> Any:
        state = await self._gateway.store.rollout(_id(request))
        if state is None:
            raise _unknown(request)
        return state

    async def _freeze(self, request: Request) -> dict[str, Any]:
        await self._gateway.calls.marks.flush()
        snapshot = await self._gateway.store.freeze(_id(request))
        return {
            "snapshot_id": snapshot.snapshot_id,
            "version": snapshot.version,
            "incomplete": snapshot.incomplete,
            "n_entries": len(snapshot.entries),
        }

    async def _entries(self, request: Request) -> dict[str, Any]:
        snapshot = await self._gateway.store.read(_id(request))
        if snapshot is None:
            raise _unknown(request)
        return {
            "rollout_id": snapshot.rollout_id,
            "snapshot_id": snapshot.snapshot_id,
            "version": snapshot.version,
            "incomplete": snapshot.incomplete,
            "incomplete_reasons": snapshot.incomplete_reasons,
            "outcome": snapshot.outcome,
            "entries": [entry.to_json() for entry in snapshot.entries],
        }

    async def _rows(self, request: Request) -> Any:
        asked, forms = request.query_params.get("delivery", "forest"), get_args(DeliveryForm)
        if asked not in forms:
            raise RequestError(400, "bad_delivery", f"delivery is one of {', '.join(forms)}, not {asked!r}")
        if not self._gateway.config.rebuilds:
            raise ElsewhereError(
                "this gateway rebuilds nothing: token_id_capture.rebuild_response is false",
                hint="freeze, rebuild and retire through the TokenSource of whoever owns the rollouts",
            )
        delivery = cast("DeliveryForm", asked)
        snapshot = await self._gateway.store.read(_id(request))
        if snapshot is None:
            raise _unknown(request)
        built = await asyncio.to_thread(rebuild, snapshot, delivery=delivery)
        return built.to_json()

    async def _retire(self, request: Request) -> dict[str, bool]:
        body = await _body(request, RetireBody)
        drop = self._gateway.store.drop
        return {"retired": await drop(_id(request), snapshot_id=body.snapshot_id, version=body.version)}

    async def _outcome(self, request: Request) -> Any:
        body = await _body(request, OutcomeBody)
        if body.reward is not None and not math.isfinite(body.reward):
            raise RequestError(400, "bad_reward", "a reward is a finite number or null")
        rollout_id = _id(request)
        await self._gateway.store.set_outcome(rollout_id, reward=body.reward, ending=body.ending, labels=body.labels)
        return await self._gateway.store.rollout(rollout_id)

    async def _policy(self, request: Request) -> PolicyState:
        body = await _body(request, PolicyBody)
        if body.state not in (None, "serving", "paused"):
            raise RequestError(400, "bad_state", f"state is serving or paused, not {body.state!r}")
        now = await self._gateway.store.policy()
        version = now.version if body.version is None else str(body.version)
        policy = PolicyState(version=version, state=body.state or now.state)
        await self._gateway.store.set_policy(policy)
        return policy

    async def _policy_now(self, request: Request) -> PolicyState:
        return await self._gateway.store.policy()


async def _body(request: Request, kind: type[Body]) -> Body:
    """The body, strictly. Raises 400 that names the field."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _LARGEST_BODY:
            raise RequestError(413, "request_too_large", f"a control body has at most {_LARGEST_BODY} bytes")
        chunks.append(chunk)
    try:
        return msgspec.json.decode(b"".join(chunks) or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RequestError(400, "bad_request", str(error)) from error
    except RecursionError as error:
        raise RequestError(400, "bad_request", "the body is nested too deeply") from error


def _id(request: Request) -> str:
    return _checked_id(request.path_params["rollout_id"])


def _checked_id(rollout_id: str) -> str:
    if not is_rollout_id(rollout_id):
        raise RequestError(400, "invalid_rollout_id", f"{rollout_id[:210]!r} is no rollout id")
    return rollout_id


def _unknown(request: Request) -> RequestError:
    return RequestError(404, "unknown_rollout", f"the store holds nothing of {_id(request)!r}")


def _json(status: int, body: Any) -> Response:
    if isinstance(body, Response):
        return body
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _error(error: RequestError) -> Response:
    return _json(error.status, {"error": {"code": error.code, "message": error.message, "hint": error.hint}})
