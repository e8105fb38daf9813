"""Recompute log-probs with plain transformers in fp32: `recompute.py MODEL < calls.json`.

Runs in vLLM's environment. Reads `[{"prompt": [ids], "generated": [ids]}...]`, writes the raw log-prob of each
generated id, a list a call. A forward pass over the whole sequence shares no code with the server's sampler.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def log_probs(model: torch.nn.Module, prompt: list[int], generated: list[int]) -> list[float]:
    ids = torch.tensor([prompt + generated])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist()


model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
json.dump([log_probs(model, call["prompt"], call["generated"]) for call in json.load(sys.stdin)], sys.stdout)
