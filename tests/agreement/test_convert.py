"""The real SmolLM2, from GGUF to transformers: the same weights, and the same ids for any text."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolltape.agreement import convert_gguf
from rolltape.agreement.convert import check_tokenizer
from rolltape.agreement.probes import PROBES, probe_texts
from rolltape.engines.llamacpp import ensure_model
from rolltape.errors import ConfigError

pytestmark = pytest.mark.real


def test_both_tokenizers_give_the_same_ids_for_thousands_of_other_texts(smollm2: Path) -> None:
    assert check_tokenizer(smollm2, ensure_model(), probe_texts(seed=1)) == PROBES


def test_the_weights_are_those_of_the_file(smollm2: Path) -> None:
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import load_file

    written = load_file(smollm2 / "model.safetensors")
    tensors = {tensor.name: tensor for tensor in GGUFReader(ensure_model()).tensors}

    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.29.mlp.down_proj.weight": "blk.29.ffn_down.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.norm.weight": "output_norm.weight",
    }.items():
        tensor = tensors[theirs]
        assert np.array_equal(written[ours], dequantize(tensor.data, tensor.tensor_type)), ours
    assert {values.dtype for values in written.values()} == {np.dtype(np.float32)}
    assert not json.loads((smollm2 / "config.json").read_text()).get("quantization_config")


def damaged(smollm2: Path, folder: Path, keep: str) -> Path:
    """The same tokenizer with only the step `keep` of how it splits text."""
    out = folder / "damaged"
    shutil.copytree(smollm2, out, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer: dict[str, Any] = json.loads((out / "tokenizer.json").read_text())
    steps = tokenizer["pre_tokenizer"]["pretokenizers"]
    assert [step["type"] for step in steps] == ["Digits", "ByteLevel", "Split"]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [s for s in steps if s["type"] in keep.split()]}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    return out


@pytest.mark.parametrize(
    ("keep", "text"),
    [("ByteLevel Split", "indented  2026"), ("Digits ByteLevel", "a \x06\u202e")],
)
def test_a_tokenizer_that_splits_otherwise_is_refused_by_the_first_text(
    smollm2: Path, tmp_path: Path, keep: str, text: str
) -> None:
    with pytest.raises(ConfigError, match="after 2 texts that agreed") as caught:
        check_tokenizer(damaged(smollm2, tmp_path, keep), ensure_model(), ["plain", "words", text, "more"])

    assert repr(text) in caught.value.message


def test_a_refused_conversion_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolltape.agreement.convert.DIGIT_BY_DIGIT", frozenset())

    with pytest.raises(ConfigError, match=r"not llama\.cpp.s: 'a  1' is"):
        convert_gguf(ensure_model(), tmp_path / "out", texts=["1234", "a  1"])

    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    with pytest.raises(ConfigError, match="not an empty folder"):
        convert_gguf(ensure_model(), tmp_path)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"GGUF" + bytes(100))

    with pytest.raises(ConfigError, match="cannot read"):
        convert_gguf(fake, tmp_path / "out")
