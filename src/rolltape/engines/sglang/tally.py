"""Each sampled position once, however often it was told. Pure.

SGLang's chunks repeat all that came before, or hold only what is new, or do the one with ids and the other with
log-probs, by version and by option. So every position is counted: what a list says about positions that are already
taken adds nothing. The log-prob entries carry their own ids, which are what was sampled; `output_ids` are held against
them, and may lack a stop token that the server hides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rolltape.engines.openai_answer import count, log_prob
from rolltape.record import Fault

LEAST = -1e30
"""At and below it a log-prob stands for none: SGLang writes the least finite number for minus infinity."""

Entry: TypeAlias = Sequence[Any]
"""(log-prob, id, text or None)"""


@dataclass(slots=True)
class TokenTally:
    """The ids taken so far. `increments`: the last chunk that could tell held only what was new; None = none could."""

    ids: list[int] = field(default_factory=list)
    increments: bool | None = None
    _entries: list[Entry] = field(default_factory=list)
    _faults: list[str] = field(default_factory=list)

    def take(self, meta: dict[str, Any], output_ids: Sequence[int] | None, stopped_by: Any = None) -> list[Entry]:
        """The new positions of a chunk. `stopped_by`: the id that ended the generation, where a token did."""
        entries = meta.get("output_token_logprobs") or ()
        before = len(self.ids)
        if entries:
            new = self._new_entries(entries, count(meta.get("output_token_logprobs_length")))
            self._entries += new
        else:
            new = [
                (None, token, None) for token in self._new_ids(output_ids or (), count(meta.get("completion_tokens")))
            ]
        self.ids += [entry[1] for entry in new]
        if output_ids is not None and entries:
            self._compare(list(output_ids), before, stopped_by)
        return new

    @property
    def has_log_probs(self) -> bool:
        """False where the server sent ids alone."""
        return bool(self._entries)

    def faults(self) -> tuple[str, ...]:
        """What does not fit together."""
        return tuple(self._faults)

    def _new_entries(self, entries: Sequence[Entry], total: int | None) -> list[Entry]:
        taken = len(self._entries)
        if total is None:
            total = len(entries) + (0 if _same(entries[:taken], self._entries) else taken)
        first = total - len(entries)
        if not 0 <= first <= taken:
            self._fault(f"{Fault.ENGINE}: log-probs from position {first} on after {taken}")
            first = taken
        return list(entries[taken - first :])

    def _new_ids(self, ids: Sequence[int], total: int | None) -> list[int]:
        taken = len(self.ids)
        cumulative = list(ids[:taken]) == self.ids if total is None else len(ids) == total
        if taken and ids:
            self.increments = not cumulative
        return list(ids[taken:] if cumulative else ids)

    def _compare(self, told: list[int], before: int, stopped_by: Any) -> None:
        hidden = bool(self.ids) and stopped_by == self.ids[-1]
        ends = (len(self.ids), len(self.ids) - 1) if hidden else (len(self.ids),)
        if before and told in [self.ids[:end] for end in ends]:
            self.increments = False
        elif told in [self.ids[before:end] for end in ends if end >= before]:
            self.increments = True if before else None
        else:
            self._fault(f"{Fault.ENGINE}: output_ids and the ids of the log-probs disagree")

    def _fault(self, fault: str) -> None:
        if fault not in self._faults:
            self._faults.append(fault)


def _same(entries: Sequence[Entry], others: Sequence[Entry]) -> bool:
    return len(entries) == len(others) and all(
        a[0] == b[0] and a[1] == b[1] for a, b in zip(entries, others, strict=True)
    )


def log_probs(entries: Sequence[Entry]) -> tuple[float | None, ...]:
    """The log-probs of the entries."""
    return tuple(log_prob(entry[0], LEAST) for entry in entries)


def texts(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The tokens' own texts, () where any has none."""
    told = tuple(entry[2] for entry in entries if len(entry) > 2 and isinstance(entry[2], str))
    return told if len(told) == len(entries) else ()


@dataclass(slots=True)
class PlacedLogProbs:
    """Log-probs that come without ids, put where they belong: each chunk's usage says how far the generation is.

    SGLang sends none for a step that shows nothing, as the stop token's, where no parser is active. Those positions
    have no log-prob, and all others keep their own.
    """

    values: list[float | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    apart: bool = False
    """They could not all be placed."""
    placed: bool = True
    """Every chunk said how far the generation was."""

    def take(self, values: Sequence[float | None], texts: Sequence[str], so_far: int | None) -> None:
        """The log-probs of one chunk; `so_far`: tokens sampled up to its end, None = not told."""
        self.placed &= so_far is not None
        missing = 0 if so_far is None else so_far - len(values) - len(self.values)
        self.apart |= missing < 0
        self.values += [None] * missing + list(values)
        self.texts += [""] * missing + list(texts)

    def for_ids(self, ids: Sequence[int]) -> tuple[float | None, ...]:
        """One an id where every one was placed, else as many as came."""
        lacking = len(ids) - len(self.values) if self.placed and not self.apart else 0
        return (*self.values, *[None] * lacking)
