"""Texts of single tokens for `rolltape explain`: of a tokenizer on disk, or of the engine that a recording names.

A `tokenizer.json` is read as the JSON it is and a GGUF file by its own header, so that no model library is needed to
look at a rollout. Two spellings of bytes are in use: GPT-2's letters for bytes, and SentencePiece's `▁` and `<0x0A>`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from rolltape.agreement.extra import needed
from rolltape.engines.llamacpp.models import DEFAULT_MODEL, FILE, cache_dir
from rolltape.errors import ConfigError
from rolltape.rebuild.breaks import TokenText
from rolltape.record import TokenEntry
from rolltape.testing.scripted.tokenizer import SPECIAL

_GGUF_CONTROL = 3


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A `TokenText` over a table; an id that is not in it is shown as such."""

    pieces: Mapping[int, bytes]

    def __call__(self, token: int) -> bytes:
        return self.pieces.get(token, f"<id {token}>".encode())


def from_path(path: Path) -> TokenText:
    """The tokens of a folder with a `tokenizer.json`, of such a file, or of a `.gguf` file. Raises `ConfigError`."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"there is no tokenizer at {str(path)!r}", hint="a folder with tokenizer.json, or a .gguf file"
        )
    try:
        return _from_gguf(file) if file.suffix == ".gguf" else _from_json(msgspec.json.decode(file.read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{str(file)!r} is no tokenizer that can be read: {error}") from error


def of_entries(entries: Iterable[TokenEntry]) -> TokenText | None:
    """The vocabulary of the engine that answered all of `entries`, where Rolltape brings it itself; else None."""
    engines = {(entry.engine, entry.model) for entry in entries if entry.engine}
    if len(engines) != 1:
        return None
    ((engine, model),) = engines
    if engine == "scripted":
        letters = {byte: bytes((byte,)) for byte in range(256)}
        return Vocabulary(letters | {token: name.encode() for token, name in SPECIAL.items()})
    file = cache_dir() / "models" / FILE
    if engine == "llamacpp" and model == DEFAULT_MODEL and file.is_file():
        try:
            return from_path(file)
        except ConfigError:  # the package that reads it is not installed: then there are no texts
            return None
    return None


def _from_json(body: Any) -> Vocabulary:
    vocabulary = body["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {piece: token for token, (piece, _) in enumerate(vocabulary)}
    byte_level = "ByteLevel" in _kinds(body.get("decoder")) | _kinds(body.get("pre_tokenizer"))
    pieces = {token: _spell(piece, byte_level) for piece, token in vocabulary.items()}
    return Vocabulary(pieces | {added["id"]: added["content"].encode() for added in body.get("added_tokens", ())})


def _kinds(step: Any) -> set[str]:
    """The types of a tokenizer's step and of those in it."""
    if not isinstance(step, dict):
        return set()
    inner = (*step.get("decoders", ()), *step.get("pretokenizers", ()))
    return {step.get("type", "")}.union(*map(_kinds, inner))


def _from_gguf(file: Path) -> Vocabulary:
    reader = needed("gguf").GGUFReader(file)
    fields = {name: reader.get_field(f"tokenizer.ggml.{name}") for name in ("model", "tokens", "token_type")}
    byte_level = fields["model"].contents() == "gpt2"
    kinds = fields["token_type"].contents() if fields["token_type"] else []
    control = {token for token, kind in enumerate(kinds) if kind == _GGUF_CONTROL}
    return Vocabulary(
        {
            token: piece.encode() if token in control else _spell(piece, byte_level)
            for token, piece in enumerate(fields["tokens"].contents())
        }
    )


def _spell(piece: str, byte_level: bool) -> bytes:
    if byte_level:
        letters = _letters()
        return b"".join(bytes((letters[c],)) if c in letters else c.encode() for c in piece)
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes((int(piece[3:5], 16),))
    return piece.replace("\u2581", " ").encode()


@cache
def _letters() -> Mapping[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}
