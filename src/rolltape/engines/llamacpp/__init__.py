"""llama.cpp as an engine: embedded in this process from a wheel, or any llama.cpp server at a URL.

Token in, token out. The server's template renders the messages, its tokenizer gives the ids, and exactly these ids
are what `/completion` is asked to continue; what is recorded is what was computed.

    engine      the Engine: one call from request to events
    models      where the default model comes from
    embedded    the llama.cpp server of this process
    client      HTTP to the server, and which of our errors each failure is
    prompt      messages -> what a template without tools can render; text that spells control tokens made harmless
    sampling    canonical sampling -> the server's fields, its own defaults neutralised
    reading     stream chunks -> events: ids aligned by position, text, stop strings
    tools       Hermes tool calls found in streamed text
"""

from rolltape.engines.llamacpp.engine import LlamaCppEngine
from rolltape.engines.llamacpp.models import ensure_model

__all__ = ["LlamaCppEngine", "ensure_model"]
