"""A GGUF file as a directory for transformers: dequantised weights, tokenizer, chat template. Needs no network.

transformers reads GGUF, but guesses at the tokenizer: a GGUF file names its pre-tokenizer and does not describe it. So
the guess is mended where llama.cpp's rule is known, and then the tokenizer *as written to disk* must give the very ids
that llama.cpp gives, on thousands of texts. One difference and nothing is written.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rolltape.agreement.extra import needed
from rolltape.agreement.probes import probe_texts
from rolltape.engines.llamacpp import embedded
from rolltape.engines.llamacpp.client import LlamaServer
from rolltape.errors import ConfigError

DIGIT_BY_DIGIT = frozenset({"smollm"})
"""Pre-tokenizers (`tokenizer.ggml.pre`) that are GPT-2's, but with every digit on its own."""


def convert_gguf(gguf: Path, out: Path, *, texts: Iterable[str] | None = None) -> None:
    """Write the model in `gguf` to the folder `out`, in float32; blocks for about a minute.

    `texts` are what the tokenizer is checked on; None means `probe_texts()`. Raises `ConfigError` when `out` is not
    empty, when a package is missing, when transformers cannot read the file, and when the tokenizers differ, with the
    first text on which they do. `out` is whole or absent.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{str(out)!r} is there and not an empty folder.", hint="Name a folder to be made.")
    needed("gguf")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        made = Path(folder) / "model"
        _write_tokenizer(gguf, made)
        check_tokenizer(made, gguf, probe_texts() if texts is None else texts)
        _write_weights(gguf, made)
        os.replace(made, out)


def check_tokenizer(model_dir: Path, gguf: Path, texts: Iterable[str]) -> int:
    """How many `texts` the tokenizer in `model_dir` and llama.cpp's own gave the same ids for: all of them.

    Texts that spell control tokens are read as control tokens by both. Raises `ConfigError` at the first difference.
    """
    tokenizer = needed("transformers").AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    running = embedded.start(gguf, slots=1, context=512)
    try:
        return asyncio.run(_check(running, tokenizer, texts))
    finally:
        running.stop()


async def _check(running: embedded.EmbeddedServer, tokenizer: Any, texts: Iterable[str]) -> int:
    checked, server = 0, LlamaServer(running.url, running.api_key)
    try:
        for text in texts:
            body = {"content": text, "add_special": False, "parse_special": True}
            theirs = (await server.post("/tokenize", body))["tokens"]
            ours = tokenizer.encode(text, add_special_tokens=False)
            if ours != theirs:
                raise ConfigError(
                    f"The converted tokenizer is not llama.cpp's: {text!r} is {theirs}, not {ours} "
                    f"(after {checked} texts that agreed).",
                    hint="Use the tokenizer that the model was published with.",
                )
            checked += 1
    finally:
        await server.close()
    return checked


def _write_tokenizer(gguf: Path, out: Path) -> None:
    try:
        tokenizer = needed("transformers").AutoTokenizer.from_pretrained(
            gguf.parent, gguf_file=gguf.name, local_files_only=True
        )
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ConfigError(f"transformers cannot read the tokenizer of {str(gguf)!r}: {error}") from error
    mend_pre_tokenizer(tokenizer.backend_tokenizer, _pre_tokenizer_name(gguf))
    tokenizer.save_pretrained(out)


def _pre_tokenizer_name(gguf: Path) -> str:
    field = needed("gguf").GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field is not None else ""


def mend_pre_tokenizer(backend: Any, name: str) -> None:
    """Make `backend` (a `tokenizers.Tokenizer`) split text as llama.cpp does for the pre-tokenizer `name`.

    Both drop bytes for which the vocabulary has no token. llama.cpp does so after merging, `tokenizers` before, so that
    what stood on both sides of the byte would merge; splitting there keeps them apart.
    """
    pre = needed("tokenizers").pre_tokenizers
    if type(backend.pre_tokenizer) is not pre.ByteLevel:
        return
    steps = [backend.pre_tokenizer]
    if name in DIGIT_BY_DIGIT:
        steps.insert(0, pre.Digits(individual_digits=True))
    vocabulary = backend.get_vocab()
    missing = "".join(sorted(letter for letter in pre.ByteLevel.alphabet() if letter not in vocabulary))
    if missing:
        codes = "".join(f"\\x{{{ord(letter):x}}}" for letter in missing)
        steps.append(pre.Split(needed("tokenizers").Regex(f"[{codes}]"), behavior="isolated"))
    backend.pre_tokenizer = pre.Sequence(steps)


def _write_weights(gguf: Path, out: Path) -> None:
    torch, transformers = needed("torch"), needed("transformers")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ConfigError(f"transformers cannot read the model in {str(gguf)!r}: {error}") from error
    # The weights are plain floats by now, but the model still counts as quantised, and such a model is not saved.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(out)
