"""Finalize and retire: from a finished rollout's record to tokens a trainer reads, in the order that loses nothing.

```
built = await finalize_rollout_token_capture(result, source)   # freeze, rebuild, put into the record
await handoff(result)                                          # durable when it returns
await retire_rollout_token_capture(rollout_id, source, built)  # drops exactly what was rebuilt, or nothing
```

Finalizing never raises: a rollout that cannot be rebuilt is a masked record, since one bad rollout must not end a run.
Masked and failed builds are never retired; their evidence stays for whoever wants to know why.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rolltape.errors import StoreError
from rolltape.rebuild import DeliveryForm, KindPolicy, Rebuilt, Witnesses, rebuild
from rolltape.rebuild.breaks import named, tree_of
from rolltape.record import Row, TokenCaptureSnapshot, TokenEntry, is_rollout_id
from rolltape.store import CaptureStore, TokenSource

ROLLOUT_ID_KEY = "_ng_rollout_id"
METRICS_KEY = "_ng_token_capture"
MASK_KEY = "mask_sample"
TERMINAL_CALL_KEY = "_ng_terminal_model_call_id"
TERMINAL_RESPONSE_KEY = "terminal_response_id"

_installed: list[TokenSource] = []


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """What finalizing one record came to. Only `retirable` evidence may be dropped.

    `rebuilt` is None where nothing was rebuilt: with an `error`, or because the record already held its tokens
    (`redundant`). `snapshot_id` and `version` name the frozen state; None if there was none.
    """

    rollout_id: str | None
    snapshot_id: str | None = None
    version: int | None = None
    rebuilt: Rebuilt | None = None
    redundant: bool = False
    error: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mask_sample(self) -> bool:
        return self.error is not None or (self.rebuilt is not None and self.rebuilt.mask_sample)

    @property
    def retirable(self) -> bool:
        return self.snapshot_id is not None and not self.mask_sample and (self.redundant or self.rebuilt is not None)


def install_token_source(source: TokenSource | None) -> None:
    """Make `source` the one that this process's rollout collector reads from. None takes it away; nothing is closed."""
    _installed[:] = [] if source is None else [source]


def installed_token_source() -> TokenSource | None:
    return _installed[0] if _installed else None


def rollout_id_of(result: Mapping[str, Any]) -> str | None:
    """The id under which a record's calls were captured; None if it names none. Raises `ValueError` on a malformed one.

    `_ng_rollout_id`, else `{task_index}-{rollout_index}`, with `-a{n}` for the n-th further attempt.
    """
    explicit = result.get(ROLLOUT_ID_KEY)
    if explicit is not None:
        if not isinstance(explicit, str) or not is_rollout_id(explicit):
            raise ValueError(f"malformed rollout id: {explicit!r}")
        return explicit
    task, rollout = _index(result, "task_index"), _index(result, "rollout_index")
    if task is None or rollout is None:
        return None
    attempt = _index(result, "attempt_index") or 0
    derived = f"{task}-{rollout}" + (f"-a{attempt}" if _positive(attempt) else "")
    if not is_rollout_id(derived):
        raise ValueError(f"malformed rollout id: {derived!r}")
    return derived


def _index(result: Mapping[str, Any], name: str) -> Any:
    return result.get(f"_ng_{name}", result.get(name))


def _positive(attempt: object) -> bool:
    if not isinstance(attempt, int | str):
        raise TypeError(f"malformed attempt index: {attempt!r}")
    return int(attempt) > 0


async def finalize_rollout_token_capture(
    result: dict[str, Any],
    source: TokenSource | None,
    *,
    delivery: DeliveryForm = "chain",
    policy: KindPolicy | None = None,
) -> Built | None:
    """Freeze the rollout that `result` is the record of, rebuild it, and put what came out into the record.

    `result["response"]["output"]` becomes the chain's items (other deliveries leave it and give rows only),
    `result["_ng_token_capture"]` the metrics, `result["_ng_rollout_id"]` the id it was captured under, and
    `result["mask_sample"]` True where the rollout must not be trained on; a mask that is there already stays. A record
    whose output holds token ids is left as it is. None without a source. Never raises.
    """
    if source is None:
        return None
    built = Built(None)
    try:
        rollout_id = rollout_id_of(result)
        if rollout_id is None:
            return _mark(result, Built(None, error="no capture key"))
        built = Built(rollout_id)
        built = await _finalize(result, source, rollout_id, delivery, policy)
    except Exception as error:  # the boundary: whatever a source or a record does, the run goes on without this rollout
        text = str(error) if str(error).startswith("malformed rollout id") else f"{type(error).__name__}: {error}"
        return _mark(result, Built(built.rollout_id, error=text))
    return built if built.redundant else _mark(result, built)


async def _finalize(
    result: dict[str, Any], source: TokenSource, rollout_id: str, delivery: DeliveryForm, policy: KindPolicy | None
) -> Built:
    snapshot = await source.freeze(rollout_id)
    if any("generation_token_ids" in item for item in _output(result)):
        return Built(rollout_id, snapshot.snapshot_id, snapshot.version, redundant=True)
    witnesses = witnesses_in(result)
    rebuilt, items = await asyncio.to_thread(_assemble, snapshot, delivery, witnesses, policy)
    rebuilt = await _with_causes(rebuilt, source, policy)
    if items:
        response = result.get("response")
        result["response"] = {**response, "output": items} if isinstance(response, dict) else {"output": items}
    return Built(
        rollout_id, snapshot.snapshot_id, snapshot.version, rebuilt, error=rebuilt.error, metrics=rebuilt.metrics
    )


def _assemble(
    snapshot: TokenCaptureSnapshot, delivery: DeliveryForm, witnesses: Witnesses, policy: KindPolicy | None
) -> tuple[Rebuilt, list[dict[str, Any]]]:
    rebuilt = rebuild(snapshot, delivery=delivery, terminal=witnesses, policy=policy)
    if delivery != "chain" or not rebuilt.rows:
        return rebuilt, []
    return rebuilt, response_items(rebuilt.rows[0], snapshot.entries)


async def _with_causes(rebuilt: Rebuilt, source: TokenSource, policy: KindPolicy | None) -> Rebuilt:
    """`rebuilt` with its breaks named, which takes the recorded texts: read only where something broke."""
    if not rebuilt.prefix_breaks or not isinstance(source, CaptureStore):
        return rebuilt
    try:
        told = await source.read(rebuilt.rollout_id, texts=True)
    except StoreError:  # texts are for people: without them the causes stay unknown, and nothing else changes
        return rebuilt
    return rebuilt if told is None else await asyncio.to_thread(_named, rebuilt, told.entries, policy)


def _named(rebuilt: Rebuilt, entries: Iterable[TokenEntry], policy: KindPolicy | None) -> Rebuilt:
    kinds = {node.model_call_id: node.kind for node in rebuilt.tree}
    breaks = named(tree_of(entries, kinds, policy or KindPolicy())).breaks
    counted = dict(sorted(Counter(one.cause for one in breaks).items()))
    return replace(rebuilt, prefix_breaks=breaks, metrics={**rebuilt.metrics, "prefix_breaks": counted})


def _mark(result: dict[str, Any], built: Built) -> Built:
    metrics = dict(built.metrics) or {"n_calls": 0}
    result[METRICS_KEY] = metrics | ({"error": built.error} if built.error else {})
    if built.mask_sample:
        result[MASK_KEY] = True
    if built.rollout_id is not None:
        result[ROLLOUT_ID_KEY] = built.rollout_id
    return built


def _output(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    response = result.get("response")
    output = response.get("output") if isinstance(response, Mapping) else None
    return [item for item in output if isinstance(item, Mapping)] if isinstance(output, list | tuple) else []


def witnesses_in(result: Mapping[str, Any]) -> Witnesses:
    """What a record says of the call it ended with: the two keys, and the reply ids in the harness's own output."""
    response = result.get("response")
    response = response if isinstance(response, Mapping) else {}
    ids = [item.get(key) for item in _output(result) for key in ("response_id", "id")] + [response.get("id")]
    declared = result.get(TERMINAL_RESPONSE_KEY, response.get(TERMINAL_RESPONSE_KEY))
    return Witnesses(
        call_id=result.get(TERMINAL_CALL_KEY),
        response_id=declared,
        reply_ids=tuple(one for one in ids if isinstance(one, str) and one),
    )


def response_items(row: Row, entries: Iterable[TokenEntry]) -> list[dict[str, Any]]:
    """A chain as Responses output items, in order.

    The last item of each owned call carries `prompt_token_ids` (the running sequence up to it), `generation_token_ids`
    and `generation_log_probs`. A call without loss keeps its items and carries none: its ids are in the next prompt.
    """
    by_id = {entry.model_call_id: entry for entry in entries}
    ids = row.token_ids.tolist()
    items: list[dict[str, Any]] = []
    for span in row.spans:
        items.extend(_bare(item) for item in by_id[span.model_call_id].output_items or (_MESSAGE,))
        if span.owned:
            items[-1] |= {
                "prompt_token_ids": ids[: span.start],
                "generation_token_ids": ids[span.start : span.end],
                "generation_log_probs": row.log_probs[span.start : span.end].tolist(),
            }
    return items


_MESSAGE: Mapping[str, Any] = {"type": "message", "role": "assistant", "content": []}
_ARRAYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def _bare(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _ARRAYS}


async def retire_rollout_token_capture(rollout_id: str, source: TokenSource | None, built: Built | None) -> bool:
    """Drop the snapshot that `built` was made of, now that the result is durable. False where anything stays.

    Nothing is dropped for a masked or failed build, for another rollout's, or when the state has changed since.
    """
    if source is None or built is None or not built.retirable or built.rollout_id != rollout_id:
        return False
    if built.snapshot_id is None or built.version is None:
        return False
    return await source.drop(rollout_id, snapshot_id=built.snapshot_id, version=built.version)


def token_capture_metrics(builds: Iterable[Built | None]) -> dict[str, float]:
    """The `token_capture/*` numbers of one step; {} of no rollouts. None = a rollout that was never finalized.

    Means are over the rollouts that were rebuilt, and left out where none was; counts are sums.
    """
    return _aggregate(
        [
            _Counted(one.metrics, one.mask_sample, one.error is None and one.rebuilt is not None) if one else _UNBUILT
            for one in builds
        ]
    )


def recorded_capture_metrics(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The same numbers from finalized records, for whoever has no more than what was written down."""
    return _aggregate([_recorded(record) for record in records])


@dataclass(frozen=True, slots=True)
class _Counted:
    """What the aggregates need to know of one rollout."""

    metrics: Mapping[str, Any]
    masked: bool
    rebuilt: bool


_UNBUILT = _Counted({}, False, False)


def _recorded(record: Mapping[str, Any]) -> _Counted:
    metrics = record.get(METRICS_KEY) or {}
    return _Counted(metrics, bool(record.get(MASK_KEY)), "chains" in metrics and not metrics.get("error"))


def _aggregate(every: Sequence[_Counted]) -> dict[str, float]:
    if not every:
        return {}
    rebuilt = [one.metrics for one in every if one.rebuilt]
    counts = {
        "rollouts_rebuilt": len(rebuilt),
        "rollouts_unbuilt": len(every) - len(rebuilt),
        "rebuilt_fraction": round(len(rebuilt) / len(every), 4),
        "empty_generation_calls": sum(m["empty_generation_calls"] for m in rebuilt),
        "parent_link_failures": sum(sum(m["parent_link_failures"].values()) for m in rebuilt),
        "masked_rollouts": sum(one.masked for one in every),
        "incomplete_rollouts": sum(bool(one.metrics.get("capture_incomplete")) for one in every),
    }
    means = {
        "calls_per_rollout_mean": "n_calls",
        "chains_per_rollout_mean": "chains",
        "delivered_fraction_mean": "delivered_fraction",
        "quarantined_fraction_mean": "quarantined_fraction",
    }
    averaged = {name: sum(m[key] for m in rebuilt) / len(rebuilt) for name, key in means.items() if rebuilt}
    return {f"token_capture/{name}": value for name, value in (counts | averaged).items()}
