"""SmolLM2 converted once for all tests that need it."""

from pathlib import Path

import pytest

from rolltape.agreement import convert_gguf
from rolltape.engines.llamacpp import ensure_model


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for transformers. That it is there says that the tokenizers agreed on 5,000 texts."""
    out = tmp_path_factory.mktemp("converted") / "smollm2"
    convert_gguf(ensure_model(), out)
    return out
