"""What packing saves in a forward and backward pass, beside what the estimate says of it.

    python benchmarks/packing.py [--json]

Each shape runs packed and row by row in turn, twice, in one process; the ratio is of the faster runs. Needs the torch
extra. The model is a random Llama of 3.4 million parameters besides its embeddings.
"""

import argparse
import json
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rolltape.rebuild.packed import pack, saving
from rolltape.record import Row
from rolltape.trainers.torch import gathered, packed_log_probs, row_log_probs
from rolltape.trainers.torch.batch import shape_of

VOCABULARY = 1000
DICE = np.random.default_rng(5)


def ids(n: int) -> list[int]:
    return DICE.integers(0, VOCABULARY, n).tolist()


def turns(start: list[int], n: int, sampled: int = 60, observed: int = 40) -> Row:
    """`n` turns after `start`."""
    whole, mask = list(start), [0] * len(start)
    for _ in range(n):
        whole += ids(sampled) + ids(observed)
        mask += [1] * sampled + [0] * observed
    loss = np.array(mask, np.int8)
    said = np.where(loss == 1, -7.0, np.nan).astype(np.float32)
    return Row("r", "rollout", np.array(whole, np.int32), loss, said, ())


def shapes() -> dict[str, list[Row]]:
    prompt, sub, system = ids(2000), ids(400), ids(600)
    main = turns(system, 20)
    summary = turns(main.token_ids[:2000].tolist(), 1)
    return {
        "8 rollouts of one 2,000-token prompt, 3 turns each": [turns(prompt, 3) for _ in range(8)],
        "8 rollouts of one 600-token prompt, 8 turns each": [turns(system, 8) for _ in range(8)],
        "one rollout: 20 turns, a compaction, two sub-agents": [main, summary, turns(sub, 4), turns(sub, 4)],
        "4 rows that share nothing": [turns(ids(300), 6) for _ in range(4)],
    }


def measured(model: LlamaForCausalLM, rows: list[Row]) -> dict[str, float]:
    packed = pack(rows)
    estimate = saving(packed, shape_of(model))

    def singly() -> None:
        for row in rows:
            (-row_log_probs(model, row).nansum()).backward()

    def together() -> None:
        (-sum(one.nansum() for one in gathered(packed, packed_log_probs(model, packed)))).backward()

    times: dict[str, list[float]] = {"rows": [], "packed": []}
    for _ in range(2):
        for name, run in (("rows", singly), ("packed", together)):
            model.zero_grad()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    rows_s, packed_s = min(times["rows"]), min(times["packed"])
    told = estimate.to_json()
    return told | {"rows_seconds": round(rows_s, 2), "packed_seconds": round(packed_s, 2), "ratio": packed_s / rows_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    wants_json = parser.parse_args().json
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **shape)).float().eval()
    found = {name: measured(model, rows) for name, rows in shapes().items()}
    if wants_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'shape':54} {'row tokens':>10} {'packed':>8} {'estimate':>9} {'measured':>9}  pays")
    for name, one in found.items():
        tokens = f"{one['row_tokens']:>10,} {one['packed_tokens']:>8,}"
        print(f"{name:54} {tokens} {one['work_ratio']:>9.2f} {one['ratio']:>9.2f}  {bool(one['pays'])}")


if __name__ == "__main__":
    main()
