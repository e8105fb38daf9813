"""Write a Qwen3 of 9.8 million random weights with the real tokenizer: `tiny_qwen3.py DIRECTORY TOKENIZER`.

Runs in vLLM's environment. What the model says is nonsense; how it is rendered, sampled and parsed is the real thing.
The weights are wide enough that its distribution is far from flat.
"""

import sys

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

CONFIG = {
    "vocab_size": 151936,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "pad_token_id": 151643,
    "initializer_range": 0.3,
}


def main(directory: str, tokenizer: str) -> None:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG)).to(torch.bfloat16)
    model.generation_config.eos_token_id = [151645, 151643]
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)


main(*sys.argv[1:])
