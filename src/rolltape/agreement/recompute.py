"""Log-probs of recorded tokens as a trainer computes them: plain transformers, in full precision.

One sequence at a time and piece by piece through the key-value cache, with logits at no more positions than asked for:
a piece of logits is (PIECE, vocabulary), whatever the length of the sequence.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rolltape.agreement.extra import needed
from rolltape.errors import ConfigError
from rolltape.tokens import FloatArray, IntArray, token_ids

PIECE = 256
"""Positions in one forward pass: with 150k tokens in the vocabulary its logits take 150 MB."""


class TransformersLogProbs:
    """The causal language model in `model_dir`, as transformers loads it. `dtype` is the name of a torch type.

    Raises `ConfigError` when torch or transformers is missing, or cannot load the model. Not for use from two threads.
    """

    def __init__(self, model_dir: str | Path, dtype: str = "float32") -> None:
        self._torch = needed("torch")
        if not (Path(model_dir) / "config.json").is_file():
            raise ConfigError(f"{str(model_dir)!r} is no model directory: it has no config.json.")
        try:
            model = needed("transformers").AutoModelForCausalLM.from_pretrained(
                model_dir, dtype=getattr(self._torch, dtype), local_files_only=True
            )
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"transformers cannot load {str(model_dir)!r} as {dtype}: {error}") from error
        self._model = model.eval().requires_grad_(False)

    def log_probs(
        self, sequence: IntArray | Sequence[int], spans: Sequence[tuple[int, int]], *, temperature: float = 1.0
    ) -> list[FloatArray]:
        """For each span (start, end) of `sequence` the (end - start,) log-probs of its ids, each given all before it.

        They are of softmax(logits / temperature), in nats: raw ones at 1. A span starts at 1 or later, since nothing
        says how likely a first token is. Raises `ValueError` for other spans, for a temperature that is not above 0,
        and for ids that the model does not have.
        """
        ids = token_ids(sequence)
        if any(not 1 <= start <= end <= len(ids) for start, end in spans):
            raise ValueError(f"spans must lie in 1..{len(ids)}: {spans}")
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        known = self._model.get_input_embeddings().num_embeddings
        if len(ids) and ids.max() >= known:
            raise ValueError(f"id {ids.max()} is of another model: this one knows {known}")
        wanted = np.zeros(len(ids), np.bool_)
        for start, end in spans:
            wanted[start:end] = True
        values = np.full(len(ids), np.nan, np.float32)
        with self._torch.inference_mode():
            for positions, found in self._forward(ids, np.flatnonzero(wanted), temperature):
                values[positions] = found
        return [values[start:end] for start, end in spans]

    def _forward(self, ids: IntArray, wanted: Any, temperature: float) -> Iterator[tuple[Any, FloatArray]]:
        """Positions of `wanted` and their log-probs, piece by piece. The logits at p - 1 are for the id at p."""
        if not len(wanted):
            return
        whole = self._torch.from_numpy(ids.astype(np.int64)).to(self._model.device)
        cache = None
        for start, end in pairwise([*range(0, wanted[-1], PIECE), wanted[-1]]):
            here = wanted[(wanted > start) & (wanted <= end)]
            keep = int(end - here[0] + 1) if len(here) else 1
            said = self._model(
                input_ids=whole[None, start:end], past_key_values=cache, use_cache=True, logits_to_keep=keep
            )
            cache = said.past_key_values
            if len(here):
                logits = said.logits[0, here - here[0]].float().div_(temperature)
                chosen = logits.gather(-1, whole[here, None])[:, 0]
                yield here, (chosen - logits.logsumexp(-1)).cpu().numpy()
