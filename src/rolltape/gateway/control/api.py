"""What each operation does, and the guard before all of them: token, errors as JSON, bounded bodies.

Errors are `{"error": {"code", "message", "hint"}}`. Frozen snapshots are named by `snapshot_id` and `version`, so a
trainer in another process can freeze, read and retire here exactly as it would beside the store.
"""

import asyncio
import math
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from rolltape.errors import ConflictError, ElsewhereError, RequestError, RetiredError, StoreError
from rolltape.gateway.address import presented_keys
from rolltape.gateway.call import internal_error
from rolltape.gateway.control import shapes
from rolltape.gateway.control.document import openapi
from rolltape.gateway.control.operations import Operation, arguments, checked_id, operation, operations
from rolltape.gateway.unforeseen import log_unforeseen
from rolltape.rebuild import DeliveryForm, read_policy, rebuild
from rolltape.store import PolicyState, RolloutState

if TYPE_CHECKING:
    from rolltape.gateway.app import Gateway

Body = TypeVar("Body")
_LARGEST_BODY = 2**20
_ROLLOUTS = "/control/rollouts"
_ONE = "/control/rollouts/{rollout_id}"
_STORE_ERRORS = {ConflictError: (409, "conflict"), RetiredError: (410, "retired"), ElsewhereError: (501, "elsewhere")}


class Control:
    """The operations of one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        paths: dict[str, dict[str, Operation]] = {}
        for one in operations(Control):
            paths.setdefault(one.path, {})[one.method] = one
        routes = [Route(path, _Methods(self, by_method)) for path, by_method in paths.items()]
        self.router = Router(routes, redirect_slashes=False, default=_not_found)

    async def answer(self, made: Operation, request: Request) -> Response:
        """What `made` says to `request`; every error as JSON."""
        try:
            if made.guarded:
                self._demand_token(request)
            given = arguments(made, request)
            if made.takes is not None:
                given["body"] = await self._body(request, made.takes)
            if made.name == "create":
                given["request"] = request
            return _answer(await getattr(self, made.name)(**given))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return _error(_as_request_error(made, error))

    def _demand_token(self, request: Request) -> None:
        if not any(map(self._gateway.keys.is_control, presented_keys(request.headers))):
            raise RequestError(401, "unauthorized", "this route wants the control token as a bearer")

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        """The body, strictly. Raises 400 that names the field, 408 or 413."""
        seconds = self._gateway.config.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                data = await _read(request)
        except TimeoutError as error:
            message = f"the body did not arrive within {seconds:g} seconds"
            raise RequestError(408, "request_timeout", message) from error
        try:
            return msgspec.convert(_whole_numbers(msgspec.json.decode(data or b"{}")), kind)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RequestError(400, "bad_request", str(error)) from error
        except RecursionError as error:
            raise RequestError(400, "bad_request", "the body is nested too deeply") from error

    @operation("GET", "/healthz", guarded=False)
    async def healthz(self) -> shapes.Health:
        """The process answers."""
        return shapes.Health()

    @operation("GET", "/readyz", guarded=False)
    async def readyz(self) -> shapes.Readiness:
        """Whether calls would be served and recorded now; 503 where not."""
        calls = self._gateway.calls
        engine, pending = await self._gateway.engine.healthy(), len(calls.marks)
        return shapes.Readiness(engine and calls.ids_arrive and not pending, engine, calls.ids_arrive, pending)

    @operation("GET", "/metrics")
    async def metrics(self) -> bytes:
        """Counters of this gateway process, for Prometheus."""
        return self._gateway.metrics.render()

    @operation("GET", "/control/openapi.json")
    async def openapi(self) -> dict[str, Any]:
        """This document."""
        return openapi(operations(Control))

    @operation("POST", _ROLLOUTS, 409)
    async def create(self, request: Request, body: shapes.NewRollout) -> shapes.Announced:
        """Announce a rollout: its API key and the base URLs to start a harness with."""
        rollout_id = checked_id(body.rollout_id) if body.rollout_id is not None else f"r{uuid.uuid4().hex}"
        if "budget" in body.labels:
            raise RequestError(400, "bad_label", "the label `budget` is taken: give `budget` beside `labels`")
        budget = msgspec.to_builtins(body.budget)
        labels = {**body.labels, **({"budget": budget} if budget else {})}
        await self._gateway.store.create_rollout(rollout_id, labels)
        base = f"{request.url.scheme}://{request.url.netloc}/rollout/{rollout_id}"
        config = self._gateway.config
        return shapes.Announced(
            rollout_id=rollout_id,
            api_key=self._gateway.keys.key(rollout_id),
            base_urls={"openai": f"{base}/v1", "anthropic": base, "gemini": base},
            captured=config.opted_in(labels),
            rebuild=config.rebuilds,
        )

    @operation("GET", _ROLLOUTS)
    async def listing(self) -> shapes.Listing:
        """Every rollout that the store knows."""
        return shapes.Listing([_status(state) for state in await self._gateway.store.rollouts()])

    @operation("GET", _ONE, 404)
    async def one(self, rollout_id: str) -> shapes.RolloutStatus:
        """Where a rollout stands."""
        state = await self._gateway.store.rollout(rollout_id)
        if state is None:
            raise _unknown(rollout_id)
        return _status(state)

    @operation("POST", f"{_ONE}/freeze", 404, 410)
    async def freeze(self, rollout_id: str) -> shapes.Frozen:
        """End a rollout: it takes no calls any more. Asked again, the same state gives the same answer."""
        await self._gateway.calls.marks.flush()
        snapshot = await self._gateway.store.freeze(rollout_id)
        return shapes.Frozen(snapshot.snapshot_id, snapshot.version, snapshot.incomplete, len(snapshot.entries))

    @operation("GET", f"{_ONE}/entries", 404)
    async def entries(self, rollout_id: str) -> shapes.Entries:
        """What the store holds of a rollout, frozen or not; also after it was retired."""
        snapshot = await self._gateway.store.read(rollout_id)
        if snapshot is None:
            raise _unknown(rollout_id)
        return shapes.Entries(
            rollout_id=snapshot.rollout_id,
            snapshot_id=snapshot.snapshot_id,
            version=snapshot.version,
            incomplete=snapshot.incomplete,
            incomplete_reasons=snapshot.incomplete_reasons,
            outcome=snapshot.outcome,
            entries=[entry.to_json() for entry in snapshot.entries],
        )

    @operation("GET", f"{_ONE}/rows", 404)
    async def rows(self, rollout_id: str, delivery: DeliveryForm = "forest") -> shapes.Rows:
        """The training rows of a rollout, in one delivery form."""
        if not self._gateway.config.rebuilds:
            raise ElsewhereError(
                "this gateway rebuilds nothing: token_id_capture.rebuild_response is false",
                hint="freeze, rebuild and retire through the TokenSource of whoever owns the rollouts",
            )
        snapshot = await self._gateway.store.read(rollout_id)
        if snapshot is None:
            raise _unknown(rollout_id)
        policy = read_policy(self._gateway.config.call_policy)
        built = await asyncio.to_thread(rebuild, snapshot, delivery=delivery, policy=policy)
        return shapes.Rows(**built.to_json())

    @operation("POST", f"{_ONE}/retire", 410)
    async def retire(self, rollout_id: str, body: shapes.Retire) -> shapes.Retired:
        """Let go of a rollout, once its consumer holds the result: only in exactly the state that was frozen."""
        drop = self._gateway.store.drop
        return shapes.Retired(await drop(rollout_id, snapshot_id=body.snapshot_id, version=body.version))

    @operation("POST", f"{_ONE}/outcome", 404, 409, 410)
    async def outcome(self, rollout_id: str, body: shapes.Outcome) -> shapes.RolloutStatus:
        """Note how a rollout ended, and its reward."""
        if body.reward is not None and not math.isfinite(body.reward):
            raise RequestError(400, "bad_reward", "a reward is a finite number or null")
        await self._gateway.store.set_outcome(rollout_id, reward=body.reward, ending=body.ending, labels=body.labels)
        return await self.one(rollout_id)

    @operation("POST", "/control/policy")
    async def set_policy(self, body: shapes.PolicyChange) -> shapes.Policy:
        """Announce new weights, or pause the calls while they change. Every worker sees it."""
        now = await self._gateway.store.policy()
        version = now.version if body.version is None else str(body.version)
        policy = PolicyState(version=version, state=body.state or now.state)
        await self._gateway.store.set_policy(policy)
        return shapes.Policy(policy.version, policy.state)

    @operation("GET", "/control/policy")
    async def policy(self) -> shapes.Policy:
        """The policy that is served."""
        now = await self._gateway.store.policy()
        return shapes.Policy(now.version, now.state)


class _Methods:
    """The methods of one path, as an ASGI application."""

    def __init__(self, control: Control, by_method: dict[str, Operation]) -> None:
        self._control, self._by_method = control, by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = self._by_method.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if made is None:
            allowed = ", ".join(self._by_method)
            error = RequestError(405, "method_not_allowed", f"{scope['path'][:200]} takes {allowed}")
            response = _error(error)
            response.headers["allow"] = allowed
        else:
            response = await self._control.answer(made, Request(scope, receive))
        await response(scope, receive, send)


def _as_request_error(made: Operation, error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, StoreError):
        status, code = _STORE_ERRORS.get(type(error), (503, "store_error"))
        return RequestError(status, code, error.message, hint=error.hint)
    log_unforeseen(f"{made.method} {made.path} failed", error)
    return internal_error(error)


async def _read(request: Request) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _LARGEST_BODY:
            raise RequestError(413, "request_too_large", f"a control body has at most {_LARGEST_BODY} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _whole_numbers(value: Any) -> Any:
    """JSON and its schemas know one kind of number: 3.0 is an integer. Labels are their writer's own."""
    if isinstance(value, dict):
        return {name: held if name == "labels" else _whole_numbers(held) for name, held in value.items()}
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    error = RequestError(404, "not_found", f"{scope['path'][:200]} is no route of the control API")
    await _error(error)(scope, receive, send)


def _status(state: RolloutState) -> shapes.RolloutStatus:
    return shapes.RolloutStatus(**{name: getattr(state, name) for name in shapes.RolloutStatus.__struct_fields__})


def _unknown(rollout_id: str) -> RequestError:
    return RequestError(404, "unknown_rollout", f"the store holds nothing of {rollout_id!r}")


def _answer(body: Any) -> Response:
    if isinstance(body, bytes):
        return Response(body, media_type="text/plain; version=0.0.4")
    red = isinstance(body, shapes.Readiness) and not body.ready
    return Response(msgspec.json.encode(body), 503 if red else 200, media_type="application/json")


def _error(error: RequestError) -> Response:
    told = shapes.ErrorBody(shapes.ErrorDetail(error.code, error.message, error.hint))
    return Response(msgspec.json.encode(told), error.status, media_type="application/json")
