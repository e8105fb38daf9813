"""Log-probs piece by piece are those of one pass over the whole sequence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolltape.agreement import TransformersLogProbs
from rolltape.agreement.recompute import PIECE
from rolltape.errors import ConfigError

pytestmark = pytest.mark.real

VOCABULARY = 500
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module", params=["Llama", "Qwen3"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**SIZES)
    folder = tmp_path_factory.mktemp(request.param)
    getattr(transformers, f"{request.param}ForCausalLM")(config).save_pretrained(folder)
    return folder


def ids(length: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(length).integers(0, VOCABULARY, length, dtype=np.int32)


def in_one_pass(directory: Path, sequence: np.ndarray[Any, Any], temperature: float = 1.0) -> np.ndarray[Any, Any]:
    """(T - 1,) log-probs of every id but the first."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    whole = torch.tensor(sequence.astype(np.int64))[None]
    with torch.inference_mode():
        logits = model(whole).logits[0, :-1] / temperature
    found: np.ndarray[Any, Any] = torch.log_softmax(logits, -1).gather(-1, whole[0, 1:, None])[:, 0].numpy()
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("length", [2, PIECE, PIECE + 1, PIECE + 2, 3 * PIECE + 7])
def test_every_log_prob_is_that_of_one_pass(directory: Path, length: int, temperature: float) -> None:
    sequence = ids(length)

    (found,) = TransformersLogProbs(directory).log_probs(sequence, [(1, length)], temperature=temperature)

    assert found.dtype == np.float32
    assert found == pytest.approx(in_one_pass(directory, sequence, temperature), abs=2e-5)


def test_spans_are_slices_of_it_wherever_they_lie(directory: Path) -> None:
    sequence = ids(3 * PIECE)
    spans = [
        (PIECE - 1, PIECE + 2),
        (5, 6),
        (2 * PIECE, 2 * PIECE),
        (2 * PIECE + 9, 3 * PIECE - 40),
        (PIECE, PIECE + 9),
    ]

    found = TransformersLogProbs(directory).log_probs(sequence, spans)

    whole = in_one_pass(directory, sequence)
    for (start, end), values in zip(spans, found, strict=True):
        assert values == pytest.approx(whole[start - 1 : end - 1], abs=2e-5)


def test_nothing_is_computed_behind_the_last_id_that_is_asked_for(directory: Path) -> None:
    source = TransformersLogProbs(directory)
    lengths: list[int] = []
    source._model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )

    assert [len(values) for values in source.log_probs(ids(900), [])] == []
    source.log_probs(ids(900), [(290, 300)])

    assert lengths == [PIECE, 299 - PIECE]


@pytest.mark.parametrize("span", [(0, 1), (3, 2), (1, 11)])
def test_a_span_outside_of_what_can_be_known_is_an_error(directory: Path, span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"spans must lie in 1\.\.10"):
        TransformersLogProbs(directory).log_probs(ids(10), [span])


def test_a_temperature_of_zero_is_an_error(directory: Path) -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        TransformersLogProbs(directory).log_probs(ids(10), [(1, 2)], temperature=0)


def test_an_id_of_another_model_is_an_error(directory: Path) -> None:
    with pytest.raises(ValueError, match="id 500 is of another model: this one knows 500"):
        TransformersLogProbs(directory).log_probs([1, VOCABULARY], [(1, 2)])


def test_what_is_no_model_is_refused(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(ConfigError, match="no model directory"):
        TransformersLogProbs(tmp_path)
    with pytest.raises(ConfigError, match="as float31"):
        TransformersLogProbs(directory, dtype="float31")
