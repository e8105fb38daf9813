"""The order of one model call.

    decode -> admit -> intent ─┐ (durable; overlaps the engine's prefill, only the first byte waits for it)
                  engine ──────┴> deltas to the harness as they come
                                  durable entry
                                  the acting event and all that follows it

Whatever happens to a call whose intent was written, exactly one entry settles it: completed, refused, failed or
cancelled. A client that leaves ends the generation, so a retry never runs beside the call it repeats.
"""

import asyncio
import math
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rolltape.capture import CallIdentity, ModelCall, request_digest
from rolltape.chat import ChatRequest, pin_sampling
from rolltape.config import ServeConfig
from rolltape.engines import Engine
from rolltape.errors import EngineBroken, EngineRefused, RateLimited, RequestError
from rolltape.gateway.address import Address
from rolltape.gateway.admission import Admission
from rolltape.gateway.continuing import Observing, continuing
from rolltape.gateway.exchange import ClientGone, Exchange
from rolltape.gateway.fleet import Chosen, Fleet
from rolltape.gateway.limits import Limiter, Rates
from rolltape.gateway.metrics import Metrics
from rolltape.gateway.reply import ReplyChannel, StreamedReply, WholeReply
from rolltape.gateway.tape import CaptureFailed, Marks, NoTape, Recording, RolloutClosed, Tape
from rolltape.gateway.unforeseen import log_unforeseen
from rolltape.harness.kinds import Classify
from rolltape.media import media_parts
from rolltape.record import Delivery, Outcome, TokenEntry
from rolltape.store import CaptureStore
from rolltape.wire import WireProtocol

_STOPPED = RequestError(503, "gateway_stopped", "the gateway stopped before the reply was complete")


@dataclass(slots=True)
class _Call:
    """What the steps of one call share. `machine` and `tape` exist once it was admitted."""

    exchange: Exchange
    protocol: WireProtocol
    address: Address
    request: ChatRequest
    chosen: Chosen
    body_digest: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: float = field(default_factory=time.time)
    machine: ModelCall | None = None
    tape: Recording | None = None

    @property
    def reply_id(self) -> str:
        return f"{self.protocol.reply_prefix}{self.id}"

    @property
    def steered(self) -> bool:
        """Whether its prompt may be made of recorded ids: one of the policy's, in a rollout."""
        return self.chosen.is_policy and self.address.captured and self.address.rollout_id is not None

    async def begun(self) -> None:
        if self.tape is not None:
            await self.tape.begun()


class CallServer:
    """Serves model calls. One for each gateway process."""

    def __init__(
        self, config: ServeConfig, fleet: Fleet, store: CaptureStore, metrics: Metrics, classify: Classify
    ) -> None:
        self.config, self.store, self.metrics = config, store, metrics
        self._fleet, self._classify = fleet, classify
        limits = config.limits
        self._usual = Rates(limits.rollout_calls_per_minute, limits.rollout_calls_at_once)
        self._limiter = Limiter(Rates(limits.calls_per_minute, limits.calls_at_once), time.monotonic())
        self._observing, self._continuing = Observing(), continuing(config)
        self.admission = Admission(store)
        self.marks = Marks(store)
        self.ids_arrive = True
        """False while the policy's last completed call came without exact ids: what captures nothing must not look
        well."""

    @asynccontextmanager
    async def passing(self, protocol: WireProtocol, address: Address) -> AsyncIterator[None]:
        """Within the rates of its rollout and of the gateway, while the body runs. Raises `RateLimited`.

        A call that is refused here leaves no entry: a bound that costs a sync each time would bound nothing.
        """
        rates = await self.admission.rates(address.rollout_id, self._usual)
        with ExitStack() as stack:
            try:
                stack.enter_context(self._limiter.passing(address.rollout_id, rates, time.monotonic()))
            except RateLimited as error:
                self.metrics.limited(error.bound)
                self.metrics.call_ended(protocol.name, Outcome.REFUSED, captured=address.captured)
                raise
            yield

    async def serve(self, exchange: Exchange, protocol: WireProtocol, address: Address) -> None:
        """Serve one call whose address stands. Every error becomes a reply in the caller's dialect."""
        try:
            call = await self._decode(exchange, protocol, await self._recorded(address))
        except ClientGone:
            return
        except RequestError as error:
            await refuse(exchange, protocol, error)
            return
        with self.metrics.in_flight(protocol.name):
            async with exchange.watched():
                await self._run(call)

    async def count(self, exchange: Exchange, protocol: WireProtocol, address: Address) -> None:
        """Count the tokens of a request with the engine's own tokenizer. Nothing is sampled and nothing recorded."""
        try:
            call = await self._decode(exchange, protocol, address)
            refuse_media(call.chosen.engine, call.request)
            tokens = await call.chosen.engine.count_tokens(call.request)
        except ClientGone:
            return
        except RequestError as error:
            await refuse(exchange, protocol, error)
            return
        await exchange.respond(200, {"content-type": "application/json"}, protocol.encode_count(tokens))

    async def _recorded(self, address: Address) -> Address:
        """The address, to be captured only where capture is on and the agent opted in."""
        if not address.captured or address.rollout_id is None:
            return address
        if self.config.capturing and (address.opted_in or not self.config.agents):
            return address
        labels = await self.admission.announced(address.rollout_id) if self.config.capturing else {}
        return replace(address, captured=self.config.opted_in(labels))

    async def _decode(self, exchange: Exchange, protocol: WireProtocol, address: Address) -> _Call:
        body = await self._body(exchange)
        asked = f"{address.path}?{exchange.query}" if exchange.query else address.path
        request = protocol.decode(asked, body, exchange.headers)
        chosen = await self._fleet.choose(request.model)
        return _Call(exchange, protocol, address, request, chosen, request_digest(body))

    async def _body(self, exchange: Exchange) -> bytes:
        limits = self.config.limits
        try:
            async with asyncio.timeout(limits.body_seconds):
                return await exchange.read_body(limits.max_body_bytes)
        except TimeoutError as error:
            message = f"the request body did not arrive within {limits.body_seconds:g} seconds"
            raise RequestError(408, "request_timeout", message) from error

    async def _run(self, call: _Call) -> None:
        channel = self._channel(call)
        streamed = channel if isinstance(channel, StreamedReply) else None
        async with AsyncExitStack() as stack:
            if streamed is not None:
                await stack.enter_async_context(streamed.kept_alive(self.config.limits, call.begun))
            try:
                async with call.exchange.until_gone():
                    await self._admit(call)
                    await self._sample_in_time(call, channel)
                entry = await self._ended(call, Outcome.COMPLETED, "")
                await self._record(call, entry)
                if call.steered and call.machine is not None:
                    self._continuing.remember(call.request, entry, call.machine)
            except ClientGone:
                await self._close(call, Outcome.CANCELLED, "the client left before the reply was complete")
                return
            except (RolloutClosed, CaptureFailed) as error:
                self.metrics.call_ended(call.protocol.name, error.code, captured=True)
                await fail(call.exchange, call.protocol, streamed, error)
                return
            except RequestError as error:
                outcome = Outcome.REFUSED if isinstance(error, EngineRefused) else Outcome.FAILED
                await self._close(call, outcome, self._kept(error))
                await fail(call.exchange, call.protocol, streamed, error)
                return
            except asyncio.CancelledError:  # only a server that stops cancels a call: its client is told, if it can be
                await self._close(call, Outcome.CANCELLED, _STOPPED.message)
                await fail(call.exchange, call.protocol, streamed, _STOPPED)
                return
            except Exception as error:
                log_unforeseen(f"call {call.id} failed", error)
                broken = internal_error(error)
                await self._close(call, Outcome.FAILED, self._kept(broken))
                await fail(call.exchange, call.protocol, streamed, broken)
                return
        await self._deliver(call, channel)

    def _channel(self, call: _Call) -> ReplyChannel:
        created = int(call.started_at)
        if not call.request.stream:
            return WholeReply(call.exchange, call.protocol, call.request, created)
        encoder = call.protocol.encoder(call.request, reply_id=call.reply_id, created=created)
        return StreamedReply(call.exchange, encoder, call.id)

    async def _admit(self, call: _Call) -> None:
        """Wait for the policy, charge the budget, and send the intent on its way."""
        rollout_id = call.address.rollout_id
        policy = await self.admission.admit(rollout_id)  # a call that is not captured spends the budget all the same
        call.machine = ModelCall(self._identity(call, policy.version if call.chosen.is_policy else None))
        if rollout_id is None or not call.address.captured:
            call.tape = NoTape()
            return
        call.tape = Tape(
            self.store,
            self.marks,
            rollout_id,
            call.id,
            patience=self.config.limits.durable_seconds,
            strict=self.config.strict,
            on_fault=self.metrics.capture_fault,
        )

    def _identity(self, call: _Call, policy_version: str | None) -> CallIdentity:
        labels = self.admission.labels(call.address.rollout_id)
        kind, evidence = self._classify(call.exchange.headers, call.request, labels)
        return CallIdentity(
            rollout_id=call.address.rollout_id or "untagged",
            model_call_id=call.id,
            response_id=call.reply_id,
            protocol=call.protocol.name,
            engine=call.chosen.engine.kind,
            engine_name=None if call.chosen.is_policy else call.chosen.name,
            model=call.chosen.model.name,
            request=call.request,
            request_digest=call.body_digest,
            policy_version=policy_version,
            started_at=call.started_at,
            headers=call.protocol.tagged(call.exchange.headers),
            kind=kind,
            kind_evidence=evidence,
            keep_texts=self.config.texts and call.address.captured,
        )

    async def _sample_in_time(self, call: _Call, channel: ReplyChannel) -> None:
        seconds = self.config.limits.call_seconds
        try:
            async with asyncio.timeout(seconds) as scope:
                await self._sample(call, channel)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise RequestError(504, "call_timeout", f"the call was not sampled within {seconds:g} seconds") from error

    async def _sample(self, call: _Call, channel: ReplyChannel) -> None:
        """Run the engine to its own end, passing events on. Whatever an engine throws becomes a `RequestError`."""
        assert call.machine is not None
        engine = call.chosen.engine
        pins = self.config.sampling_overrides if call.chosen.is_policy else {}
        sampling = pin_sampling(call.request.sampling, pins)
        first = True
        try:
            refuse_media(engine, call.request)
            told = (self._continuing if call.steered else self._observing).events(
                engine, call.request, sampling, call.machine
            )
            async with aclosing(cast("Any", told)) as events:
                async for event in events:
                    call.machine.feed(event, time.time())
                    if first:
                        first = False
                        await call.begun()
                    await channel.feed(event)
        except RequestError:
            await call.begun()  # a closed rollout is the better answer
            raise
        except TimeoutError:
            raise
        except Exception as error:
            log_unforeseen(f"engine {engine.kind} broke on call {call.id}", error)
            raise EngineBroken(f"the engine broke: {type(error).__name__}: {error}") from error
        if call.machine.finished is None:
            raise EngineBroken("the engine stopped without saying why")

    async def _ended(self, call: _Call, outcome: Outcome, error: str) -> TokenEntry:
        assert call.machine is not None
        now, version = time.time(), None
        if call.chosen.is_policy:
            version = (await self.admission.policy()).version
        if outcome is Outcome.COMPLETED:
            return call.machine.completed(now, policy_version_end=version)
        return call.machine.ended(outcome, now, error, policy_version_end=version)

    async def _record(self, call: _Call, entry: TokenEntry) -> None:
        assert call.tape is not None
        await call.tape.record(entry)
        self.metrics.call_ended(call.protocol.name, entry.outcome, captured=call.address.captured)
        self.admission.charge_tokens(entry.rollout_id, len(entry.generation_token_ids))
        if call.address.captured:
            self.metrics.recorded(entry)
            if entry.outcome is Outcome.COMPLETED and call.chosen.is_policy:
                self.ids_arrive = entry.ids_exact

    async def _close(self, call: _Call, outcome: Outcome, error: str) -> None:
        """Settle the intent of a call that did not complete; a call that was never admitted leaves nothing."""
        if call.machine is None or call.tape is None:
            self.metrics.call_ended(call.protocol.name, "not_admitted", captured=call.address.captured)
            return
        try:
            await self._record(call, await self._ended(call, outcome, error))
        except CaptureFailed:
            return  # noted, and the caller gets an error already
        await call.tape.settle(Delivery.UNDELIVERED)

    def _kept(self, error: RequestError) -> str:
        """The words of an error that its entry keeps; an engine may quote what it was asked in them."""
        return error.message if self.config.texts else error.code

    async def _deliver(self, call: _Call, channel: ReplyChannel) -> None:
        """Send what waited for the durable entry. A client that leaves after the last byte has its reply."""
        assert call.machine is not None
        assert call.tape is not None
        delivery = Delivery.UNDELIVERED
        if not call.exchange.gone:
            await channel.finish(call.machine)
            # Half a JSON object is nothing, but a harness may have acted on the events of half a stream.
            half = Delivery.UNKNOWN if call.request.stream else Delivery.UNDELIVERED
            delivery = half if call.exchange.cut else Delivery.DELIVERED
        await call.tape.settle(delivery)


def refuse_media(engine: Engine, request: ChatRequest) -> None:
    """Raises `EngineRefused` for what an engine that is shown texts only would never see."""
    unseen = next(iter(media_parts(request)), None)
    if unseen is not None and not engine.gives.images:
        message = f"the engine {engine.kind} takes text only, and here is a part of type {unseen.part.get('type')!r}"
        raise EngineRefused(400, "unsupported_content", message, param=f"messages[{unseen.message}]")


def internal_error(error: Exception) -> RequestError:
    """What a caller is told of an exception that nobody foresaw."""
    return RequestError(500, "internal_error", f"the gateway failed: {type(error).__name__}: {error}")


async def refuse(exchange: Exchange, protocol: WireProtocol, error: RequestError) -> None:
    """A whole error reply in the dialect of `protocol`."""
    encoded = protocol.encode_error(error)
    later = {"retry-after": str(math.ceil(error.retry_after))} if isinstance(error, RateLimited) else {}
    await exchange.respond(encoded.status, {**encoded.headers, **later}, encoded.body)


async def fail(exchange: Exchange, protocol: WireProtocol, streamed: StreamedReply | None, error: RequestError) -> None:
    """An error on a call: with its own status while nothing was sent, as an error frame afterwards."""
    if streamed is not None and exchange.opened:
        await streamed.fail(error)
    else:
        await refuse(exchange, protocol, error)
