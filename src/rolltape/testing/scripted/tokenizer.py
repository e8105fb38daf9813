"""A tokenizer that is exact by construction: one id a byte, and special ids that no text can produce.

Ids are stable for good, so that recordings may be kept as test data:

    0..255  the bytes of UTF-8 text
    256     <|im_start|>     starts a turn
    257     <|im_end|>       ends a turn; the end token, sampled and recorded
    258     <think>          259  </think>
    260     <tool_call>      261  </tool_call>
    262     <|image|>        stands for a part of an image

`log_prob` makes every sampled token checkable on its own: its log-prob is a known function of the id and of its
position in the whole sequence, so a row built from a recording proves itself, position by position.
"""

from collections.abc import Iterable

IM_START, IM_END, THINK, END_THINK, TOOL_CALL, END_TOOL_CALL, IMAGE = range(256, 263)
SPECIAL = {
    IM_START: "<|im_start|>",
    IM_END: "<|im_end|>",
    THINK: "<think>",
    END_THINK: "</think>",
    TOOL_CALL: "<tool_call>",
    END_TOOL_CALL: "</tool_call>",
    IMAGE: "<|image|>",
}
VOCABULARY = 263
LOG_PROB_PERIOD = 16384


def encode(text: str) -> list[int]:
    """The ids of `text`: its UTF-8 bytes. Text that looks like a special token stays text."""
    return list(text.encode())


def decode(ids: Iterable[int]) -> str:
    """The text of `ids`; special tokens by name, broken UTF-8 as U+FFFD. Inverts `encode` exactly."""
    parts = (SPECIAL[token].encode() if token in SPECIAL else bytes((token,)) for token in ids)
    return b"".join(parts).decode("utf-8", "replace")


def token_text(token: int) -> str:
    """One token as a string of its own: `<0xC3>` for a byte that is no character by itself."""
    if token in SPECIAL:
        return SPECIAL[token]
    return chr(token) if token < 128 else f"<0x{token:02X}>"


def log_prob(token: int, position: int) -> float:
    """The log-prob of `token` at `position` of its sequence (prompt included, from 0).

    Below 0, at least -8, exact in float32, and different for any two pairs that lie fewer than
    `LOG_PROB_PERIOD` positions apart.
    """
    return -((position % LOG_PROB_PERIOD) * 512 + token + 1) / 2**20
