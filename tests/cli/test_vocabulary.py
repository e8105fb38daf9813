"""Texts of single tokens join to the text that was encoded: byte-level, SentencePiece, the scripted engine's."""

import json

from hypothesis import given
from hypothesis import strategies as st

from rebuild.breaks import kit
from rolltape.cli import vocabulary
from rolltape.record import TokenEntry
from rolltape.testing.scripted import tokenizer as scripted


@given(st.text(max_size=40))
def test_the_tokens_of_a_text_join_to_it(text):
    ids = kit.tokenizer().encode(text, add_special_tokens=False).ids

    assert b"".join(map(kit.text(), ids)) == text.encode()


def test_a_sentencepiece_vocabulary_spells_spaces_and_bytes(tmp_path):
    body = {
        "model": {"type": "Unigram", "vocab": [["\u2581a", -1.0], ["<0x0A>", -2.0]]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
        "added_tokens": [{"id": 7, "content": "<s>"}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(body))
    text = vocabulary.from_path(tmp_path)

    assert [text(0), text(1), text(7), text(99)] == [b" a", b"\n", b"<s>", b"<id 99>"]


def entry(engine: str) -> TokenEntry:
    return TokenEntry(
        rollout_id="r",
        model_call_id="c",
        prompt_token_ids=[1],
        generation_token_ids=[2],
        generation_log_probs=[-1.0],
        engine=engine,
        model="m",
    )


def test_the_scripted_engine_brings_its_own_vocabulary():
    text = vocabulary.of_entries([entry("scripted")])

    assert text is not None
    assert b"".join(map(text, [*scripted.encode("é"), scripted.IM_END])) == "é<|im_end|>".encode()


def test_of_an_engine_elsewhere_or_of_two_engines_nobody_knows_the_texts():
    assert vocabulary.of_entries([entry("vllm")]) is None
    assert vocabulary.of_entries([entry("scripted"), entry("vllm")]) is None
    assert vocabulary.of_entries([]) is None
