"""Trainer log-probs against recorded ones: is what the loss will see what the tokens were sampled from?

Nothing here imports torch before it computes:

    compare     two series of log-probs and what each is of -> `Agreement`. Pure; only like is compared with like
    recompute   what transformers says of recorded ids, in full precision
    convert     a GGUF file as a directory for transformers, its tokenizer checked against llama.cpp's
    probes      the texts that it is checked on
    extra       torch and transformers, which only `recompute` and `convert` need, and only when they are used
"""

from rolltape.agreement.compare import Agreement, Distribution, LogProbs, compare, compare_entries, parts
from rolltape.agreement.convert import convert_gguf
from rolltape.agreement.recompute import TransformersLogProbs

__all__ = [
    "Agreement",
    "Distribution",
    "LogProbs",
    "TransformersLogProbs",
    "compare",
    "compare_entries",
    "convert_gguf",
    "parts",
]
