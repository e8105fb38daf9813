"""Two series of log-probs of the same tokens, compared: how far apart are they, and may they be compared at all?

A log-prob says nothing without its distribution, so each series comes with a `Distribution`, and unlike ones are not
compared: the reason is given instead of numbers. What is undefined is None and never passes for agreement.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rolltape.record import LogProbKind, TokenEntry
from rolltape.tokens import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a log-prob is of. `temperature` is None where it is not known, and of no account for raw log-probs.

    `cut` names the sampling fields that took tokens away before the rest was normalised again (`top_p 0.8`): those
    log-probs have no counterpart over the whole vocabulary. "" means that nothing was cut.
    """

    kind: LogProbKind
    temperature: float | None = None
    cut: str = ""

    @classmethod
    def of(cls, kind: str, sampling: Mapping[str, Any]) -> "Distribution":
        """The distribution of log-probs of `kind` that were sampled with `sampling`."""
        if kind != LogProbKind.TEMPERATURE_SCALED:
            return cls(LogProbKind(kind))
        temperature = sampling.get("temperature")
        cuts = [f"{name} {sampling[name]}" for name, harmless in CUTS.items() if sampling.get(name) not in harmless]
        return cls(LogProbKind(kind), None if temperature is None else float(temperature), ", ".join(cuts))

    def unlike(self, other: "Distribution") -> str:
        """Why this and `other` cannot be compared; "" when they can."""
        for one in (self, other):
            if one.kind in (LogProbKind.GRAMMAR_MASKED, LogProbKind.UNKNOWN):
                return f"{one.kind}: not comparable"
            if one.cut:
                return f"{one.cut}: not comparable"
        if self.kind != other.kind:
            return f"{self.kind} is not {other.kind}"
        if self.kind == LogProbKind.TEMPERATURE_SCALED:
            if self.temperature is None or other.temperature is None:
                return "temperature unknown"
            if self.temperature != other.temperature:
                return f"temperature {self.temperature} is not {other.temperature}"
        return ""


CUTS: Mapping[str, tuple[float | None, ...]] = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0)}
"""Sampling fields that cut the distribution, and the values with which they do not."""

RAW = Distribution(LogProbKind.RAW)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well recorded and recomputed log-probs of `n_tokens` tokens agree. Numbers are None where undefined.

    `reason` says why the two may not be compared, or "" when they were. `pearson` is of probabilities and needs two
    tokens and both series to vary. Differences are absolute: of log-probs in nats, `mean_abs_prob_diff` of
    probabilities. `k3` estimates KL(recorded || recomputed) in nats and is never negative. `zero_share` is the share of
    recorded log-probs that are exactly 0: certainty is rare, and 1.0 tells of an engine that reports none.
    `n_unknown` tokens had no recorded log-prob and are in none of the other numbers.
    """

    n_tokens: int
    reason: str = ""
    n_unknown: int = 0
    pearson: float | None = None
    max_abs_diff: float | None = None
    mean_abs_diff: float | None = None
    mean_abs_prob_diff: float | None = None
    k3: float | None = None
    zero_share: float | None = None

    @property
    def comparable(self) -> bool:
        return not self.reason

    @property
    def degenerate(self) -> bool:
        """Every recorded log-prob is exactly 0: not what anything was sampled from."""
        return self.zero_share == 1.0

    def holds(self, *, pearson: float, max_abs_diff: float) -> bool:
        """True when at least so well correlated and nowhere further apart. What is undefined does not hold."""
        if not self.comparable or self.degenerate or self.pearson is None or self.max_abs_diff is None:
            return False
        return self.pearson >= pearson and self.max_abs_diff <= max_abs_diff


def compare(
    recorded: ArrayLike,
    recomputed: ArrayLike,
    *,
    of: Distribution = RAW,
    against: Distribution = RAW,
    mask: ArrayLike | None = None,
) -> Agreement:
    """Compare two (T,) series: `recorded` log-probs of `of`, `recomputed` ones of `against`.

    `mask` (T,) is true where a token was sampled; others hold no log-prob. None means all. NaN in `recorded` is
    "unknown". Raises `ValueError` when lengths differ.
    """
    ours, theirs = _series(recorded), _series(recomputed)
    chosen = np.ones(len(ours), np.bool_) if mask is None else np.asarray(mask).astype(np.bool_)
    if not len(ours) == len(theirs) == len(chosen):
        raise ValueError(f"{len(ours)} recorded and {len(theirs)} recomputed log-probs, a mask of {len(chosen)}")
    known = chosen & ~np.isnan(ours)
    n, unknown = int(known.sum()), int(chosen.sum() - known.sum())
    if reason := of.unlike(against):
        return Agreement(n, reason, unknown)
    return _measure(ours[known], theirs[known], unknown) if n else Agreement(0, n_unknown=unknown)


def _series(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ValueError(f"log-probs must be a flat series, not of shape {array.shape}")
    return array


def _measure(ours: NDArray[np.float64], theirs: NDArray[np.float64], unknown: int) -> Agreement:
    with np.errstate(invalid="ignore", over="ignore"):
        apart, p, q = theirs - ours, np.exp(ours), np.exp(theirs)
        k3 = np.expm1(apart) - apart
    return Agreement(
        len(ours),
        n_unknown=unknown,
        pearson=_pearson(p, q),
        max_abs_diff=_number(np.abs(apart).max()),
        mean_abs_diff=_number(np.abs(apart).mean()),
        mean_abs_prob_diff=_number(np.abs(q - p).mean()),
        k3=_number(k3.mean()),
        zero_share=float((ours == 0).mean()),
    )


def _pearson(p: NDArray[np.float64], q: NDArray[np.float64]) -> float | None:
    if len(p) < 2 or np.ptp(p) == 0 or np.ptp(q) == 0 or not np.isfinite(p + q).all():
        return None
    return _number(np.corrcoef(p, q)[0, 1])


def _number(value: Any) -> float | None:
    """NaN is no number that a threshold could be held against."""
    return None if np.isnan(value) else float(value)


class LogProbs(Protocol):
    """Whatever recomputes log-probs: `TransformersLogProbs`, or a trainer's own model."""

    def log_probs(
        self, sequence: IntArray, spans: Sequence[tuple[int, int]], *, temperature: float = 1.0
    ) -> Sequence[FloatArray]:
        """See `TransformersLogProbs.log_probs`."""
        ...


Part: TypeAlias = tuple[int, int, Distribution]


def parts(entry: TokenEntry) -> list[Part]:
    """The generation in stretches of one distribution: (start, end, of what), together positions 0..G."""
    length = len(entry.generation_token_ids)
    kinds = np.full(length, str(entry.log_prob_kind), object)
    for start, end, kind in entry.log_prob_spans:
        kinds[start:end] = str(kind)
    edges = [0, *(np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist(), length] if length else []
    return [(start, end, Distribution.of(kinds[start], entry.sampling_applied)) for start, end in pairwise(edges)]


def compare_entries(entries: Iterable[TokenEntry], source: LogProbs) -> dict[Distribution, Agreement]:
    """Recompute what `entries` recorded and compare it, each distribution apart.

    Distributions that cannot be recomputed appear with their reason and their number of tokens. Left out are entries
    whose ids are in doubt or are no whole account of what the model saw (media), those that another engine than the
    policy's answered, and those whose log-probs do not fit their ids: nothing says which token a log-prob belongs to.
    """
    found: dict[Distribution, tuple[list[FloatArray], list[FloatArray]]] = {}
    for entry in entries:
        if _whole(entry):
            stretches = parts(entry)
            for (start, end, of), again in zip(stretches, _recompute(entry, stretches, source), strict=True):
                recorded, recomputed = found.setdefault(of, ([], []))
                recorded.append(entry.generation_log_probs[start:end])
                recomputed.append(again)
    return {
        of: compare(np.concatenate(recorded), np.concatenate(recomputed), of=of, against=of)
        for of, (recorded, recomputed) in found.items()
    }


def _whole(entry: TokenEntry) -> bool:
    known = entry.ids_exact and len(entry.prompt_token_ids) > 0 and not entry.media and entry.other_engine is None
    return known and len(entry.generation_log_probs) == len(entry.generation_token_ids)


def _recompute(entry: TokenEntry, stretches: Sequence[Part], source: LogProbs) -> list[FloatArray]:
    """The log-probs of each stretch, NaN where its distribution has no counterpart. One reading a kind."""
    at, sequence = len(entry.prompt_token_ids), entry.sequence
    found = [np.full(end - start, np.nan, np.float32) for start, end, _ in stretches]
    for of in {of for _, _, of in stretches if not of.unlike(of)}:
        places = [number for number, stretch in enumerate(stretches) if stretch[2] == of]
        spans = [(at + stretches[number][0], at + stretches[number][1]) for number in places]
        temperature = of.temperature if of.kind == LogProbKind.TEMPERATURE_SCALED else None
        again = source.log_probs(sequence, spans, temperature=temperature or 1.0)
        for number, values in zip(places, again, strict=True):
            found[number] = values
    return found
