"""What a consumer is handed: one finished rollout, its group and its media. Values only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.errors import ConfigError
from rolltape.record import Row

GROUP_KEYS = ("group_id", "_ng_task_index", "task_index", "id")
"""Where a dataset row says which prompt it is; the first one that is there counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """One finished rollout, as it leaves the actor."""

    rollout_id: str
    """A UUID, new for each rollout."""
    group_id: str
    """The identity of the prompt in the dataset: what an advantage is computed over."""
    example_index: int
    """Which of the examples asked for, from 0."""
    rollout_index: int
    """Which rollout of that example, from 0."""
    result: dict[str, Any]
    """The record: reward (None = none), ending, exclude, mask_sample, `_ng_token_capture`, `response.output`..."""
    rows: tuple[Row, ...]
    """The training sequences; empty where nothing could be rebuilt."""
    media: tuple[Mapping[str, Any], ...]
    """Images and other media of the output before it was rebuilt, in order: `{item, part, value}`, both from 0."""
    snapshot_id: str | None
    """The evidence that accepting this rollout retires. None = it stays: a masked or failed build, or no capture."""
    version: int | None


def group_id_of(example: Mapping[str, Any], index: int) -> str:
    """The group of a dataset row, whatever is sent to the model for it. Raises `ConfigError` if it names none."""
    for key in GROUP_KEYS:
        value = example.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    raise ConfigError(
        f"example {index} does not say which prompt of the dataset it is",
        hint=f"give it one of {', '.join(GROUP_KEYS)}: rollouts are grouped by it, never by the text that was sent",
    )


def media_of(output: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """What is no text in Responses output items. A part's `value` is the part as it came; item-level media have part
    None."""
    return tuple(
        {"item": number, "part": part, "value": value}
        for number, item in enumerate(output)
        if isinstance(item, Mapping)
        for part, value in _media(item)
    )


_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"})


def _media(item: Mapping[str, Any]) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    if item.get("type") == "image_generation_call":
        yield None, item
    for name in ("content", "output"):
        parts = item.get(name)
        for number, part in enumerate([parts] if isinstance(parts, Mapping) else parts or ()):
            if isinstance(part, Mapping) and part.get("type") not in (None, *_TEXTS):
                yield number, part
