"""vLLM as an engine, observed: its own chat endpoint renders, samples and parses; the exact ids come with the answer.

engine      the Engine: one call from request to events
asking      canonical request -> the body that vLLM gets; which distribution its log-probs are of
reading     bytes of the streamed answer -> events
refusals    answers that are not 200, and which of our errors each is
"""

from rolltape.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
