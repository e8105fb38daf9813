"""A packed tree gives the log-probs and the gradients of its rows."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rolltape.errors import ConfigError
from rolltape.rebuild.packed import pack
from rolltape.record import Row
from rolltape.trainers.torch import batch_log_probs, gathered, packed_log_probs, row_log_probs

pytestmark = pytest.mark.real

SHAPE = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}


def llama():
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS)).float().eval()


def qwen3():
    torch.manual_seed(3)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, **HEADS, head_dim=16)).float().eval()


def rollout(seed: int = 5) -> list[Row]:
    """A conversation, its compaction, and two sub-agents with one system prompt."""
    dice = np.random.default_rng(seed)
    system, sub = dice.integers(0, 300, 30), dice.integers(0, 300, 12)

    def grown(start, turns):
        ids, mask = list(start), [0] * len(start)
        for _ in range(turns):
            ids += dice.integers(0, 300, 14).tolist()
            mask += [1] * 9 + [0] * 5
        return ids, mask

    main = grown(system, 5)
    half = main[0][:65], [0] * 65
    compacted = half[0] + dice.integers(0, 300, 20).tolist(), half[1] + [0] * 8 + [1] * 12
    rows = [main, compacted, grown(sub, 2), grown(sub, 3)]
    return [
        Row(
            f"r{n}",
            "rollout",
            np.array(ids, np.int32),
            np.array(mask, np.int8),
            np.where(np.array(mask) == 1, -0.5, np.nan).astype(np.float32),
            (),
        )
        for n, (ids, mask) in enumerate(rows)
    ]


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("make", [llama, qwen3])
def test_packed_log_probs_equal_those_of_the_single_rows(make):
    model, rows = make(), rollout()
    packed = pack(rows)
    assert len(packed) < sum(len(row.token_ids) for row in rows)
    single = [row_log_probs(model, row) for row in rows]
    together = gathered(packed, packed_log_probs(model, packed))
    for one, other, row in zip(single, together, rows, strict=True):
        assert torch.isnan(one).tolist() == torch.isnan(other).tolist() == (row.loss_mask == 0).tolist()
        assert (one - other).abs().nan_to_num().max().item() < 1e-5


@pytest.mark.parametrize("make", [llama, qwen3])
def test_packed_gradients_equal_those_of_the_single_rows(make):
    model, rows = make(), rollout()
    packed = pack(rows)
    advantages = [1.0, -0.5, 0.25, 2.0]
    single = sum(a * row_log_probs(model, row).nansum() for a, row in zip(advantages, rows, strict=True))
    expected = gradients(model, single)
    together = gathered(packed, packed_log_probs(model, packed))
    found = gradients(model, sum(a * one.nansum() for a, one in zip(advantages, together, strict=True)))
    assert torch.isfinite(found).all()
    assert ((expected - found).norm() / expected.norm()).item() < 1e-5


def test_a_group_with_the_same_first_sampled_id_keeps_each_ones_own_gradient():
    model = llama()
    mask = np.array([0, 0, 1, 1], np.int8)
    said = np.array([np.nan, np.nan, -1, -1], np.float32)
    rows = [Row(f"r{n}", f"x{n}", np.array([7, 8, 9, n], np.int32), mask, said, ()) for n in (20, 21)]
    packed = pack(rows)
    together = gathered(packed, packed_log_probs(model, packed))
    found = gradients(model, together[0].nansum() - 3 * together[1].nansum())
    expected = gradients(model, row_log_probs(model, rows[0]).nansum() - 3 * row_log_probs(model, rows[1]).nansum())
    assert ((expected - found).norm() / expected.norm()).item() < 1e-5


def longer(prompt: int, branches: int) -> list[Row]:
    """Rows that share a prompt of so many ids."""
    dice = np.random.default_rng(2)
    shared = dice.integers(0, 300, prompt)
    mask = np.array([0] * prompt + [1] * 10, np.int8)
    said = np.where(mask == 1, -0.5, np.nan).astype(np.float32)
    ids = [np.concatenate([shared, dice.integers(0, 300, 10)]).astype(np.int32) for _ in range(branches)]
    return [Row(f"r{n}", f"x{n}", one, mask, said, ()) for n, one in enumerate(ids)]


@pytest.mark.parametrize(("prompt", "pays"), [(100, True), (1, False)])
def test_rows_are_packed_where_that_pays_and_give_the_same_either_way(prompt, pays):
    model, rows = llama(), longer(prompt, 4)
    found, estimate = batch_log_probs(model, rows)
    assert estimate.pays is pays
    for one, row in zip(found, rows, strict=True):
        assert (one - row_log_probs(model, row)).abs().nan_to_num().max().item() < 1e-5


def test_a_model_that_cannot_take_a_tree_gets_its_rows_one_by_one():
    windows = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, **HEADS, head_dim=16, **windows)).float().eval()
    rows = longer(100, 4)
    found, _ = batch_log_probs(model, rows)
    assert all(torch.isfinite(one[row.loss_mask == 1]).all() for one, row in zip(found, rows, strict=True))


def test_log_probs_are_those_of_a_plain_forward_pass():
    model, row = llama(), rollout()[0]
    ids = torch.tensor(row.token_ids.tolist())
    full = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    found = row_log_probs(model, row)
    for at in np.flatnonzero(row.loss_mask):
        assert found[at].item() == pytest.approx(full[at - 1, ids[at]].item(), abs=1e-5)


def test_a_temperature_divides_the_logits():
    model, row = llama(), rollout()[0]
    ids = torch.tensor(row.token_ids.tolist())
    full = (model(input_ids=ids[None]).logits[0] / 0.7).log_softmax(-1)
    at = int(np.flatnonzero(row.loss_mask)[3])
    found = row_log_probs(model, row, temperature=0.7)[at].item()
    assert found == pytest.approx(full[at - 1, ids[at]].item(), abs=1e-5)


def test_the_model_attends_as_before_afterwards():
    model, rows = llama(), rollout()
    before = row_log_probs(model, rows[0])
    packed_log_probs(model, pack(rows))
    assert torch.equal(before.nan_to_num(), row_log_probs(model, rows[0]).nan_to_num())


def test_a_model_with_a_sliding_window_is_refused():
    model = qwen3()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="sliding_attention"):
        packed_log_probs(model, pack(rollout()))
