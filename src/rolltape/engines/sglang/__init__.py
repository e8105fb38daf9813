"""SGLang as an engine, observed: its chat endpoint renders, samples and parses; raw prompts go to its native endpoint.

engine      the Engine: one call from request to events
asking      canonical request -> the body that SGLang gets; which distribution its log-probs are of
chat        bytes of a chat answer, streamed or whole -> events
generating  bytes of a native answer -> events
tally       each sampled position once, however often it was told
refusals    answers that are not 200, and which of our errors each is
"""

from rolltape.engines.sglang.engine import SglangEngine

__all__ = ["SglangEngine"]
