"""SGLang's answers that are not 200, and which of our errors each is. Pure."""

import re

from rolltape.engines.refusals import Wording

refusal = Wording(
    "SGLang",
    context=re.compile(
        r"model's context length \((\d+) tokens\)|maximum context length of (\d+) tokens"
        r"|maximum allowed length \((\d+) tokens\)"
    ),
    prompt=re.compile(r"The input \((\d+) tokens\)|: (\d+) tokens from the input|Input length \((\d+) tokens\)"),
).refusal
"""The error that an answer with a status is."""
