"""docs/reference says what the code says."""

import importlib.util

import pytest

from docs import pages


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate", pages.ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


@pytest.mark.filterwarnings("default")
def test_the_reference_is_what_make_docs_writes():
    for name, text in generated().items():
        assert (pages.ROOT / "docs" / "reference" / name).read_text() == text, f"{name} is stale: make docs"
