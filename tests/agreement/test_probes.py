"""The texts that a tokenizer is checked on are always the same, of every kind, and can all be encoded."""

import re
import subprocess
import sys

import pytest

from rolltape.agreement.extra import needed
from rolltape.agreement.probes import PROBES, probe_texts
from rolltape.errors import ConfigError

KINDS = {
    "digits": r"\d{4}",
    "code": r"def f\d+\(x: int",
    "joined emoji": "\U0001f468\U0001f3fd\u200d\U0001f4bb",
    "flags": "[\U0001f1e6-\U0001f1ff]{2}",
    "Han": "[\u4e00-\u9fff]",
    "Arabic": "[\u0620-\u064a]",
    "Hebrew": "[\u05d0-\u05ea]",
    "Devanagari": "[\u0904-\u0939]",
    "Thai": "[\u0e01-\u0e30]",
    "combining marks": "a[\u0300-\u0327]",
    "runs of spaces": r"  {5}\S",
    "tabs": r"\t\t",
    "CRLF": r"\r\n",
    "control characters": r"[\x00-\x08]",
    "URLs": "https://",
    "JSON": r'"nested": \{',
    "long words": r"\w{150}",
    "planes beyond the first": "[\U00010000-\U0010ffff]",
    "control tokens": r"<\|im_end\|>",
}


def test_the_texts_are_the_same_every_time_and_all_have_an_encoding() -> None:
    texts = list(probe_texts())

    assert len(texts) == PROBES == 5000
    assert texts == list(probe_texts())
    assert texts != list(probe_texts(seed=1))
    assert all(text.encode() for text in texts)
    assert len(set(texts)) > 0.95 * PROBES


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_many_texts_of_every_kind(kind: str) -> None:
    assert sum(re.search(KINDS[kind], text) is not None for text in probe_texts()) >= 20


def test_a_missing_package_is_an_error_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(ConfigError, match="needs the package torch") as caught:
        needed("torch")

    assert caught.value.hint == "pip install 'rolltape[torch]'"


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = "import sys, rolltape.agreement; print({'torch', 'transformers', 'gguf'} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
