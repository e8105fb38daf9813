"""Bodies are decoded within bounds."""

import gzip
import zlib

import pytest
import zstandard

from rolltape.errors import RequestError
from rolltape.gateway.exchange import decompress, joined_headers

BODY = b'{"model": "m", "messages": []}' * 50
LIMIT = 2**20


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        ("", BODY),
        ("identity", BODY),
        ("gzip", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", zlib.compress(BODY)[2:-4]),
        ("zstd", zstandard.compress(BODY)),
        ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(BODY)),
        ("gzip, zstd", zstandard.compress(gzip.compress(BODY))),
    ],
)
def test_every_encoding_that_harnesses_use_comes_back_whole(encoding, sent):
    assert decompress(sent, encoding, LIMIT) == BODY


@pytest.mark.parametrize(
    ("encoding", "sent", "status"),
    [
        ("zstd", zstandard.compress(BODY)[:-5], 400),
        ("zstd", b"not a frame at all", 400),
        ("zstd", b"", 400),
        ("zstd", zstandard.compress(BODY) + b"tail", 400),
        ("gzip", gzip.compress(BODY)[:-9], 400),
        ("gzip", b"plain", 400),
        ("deflate", b"\x00\x01", 400),
        ("snappy", b"x", 415),
    ],
)
def test_a_broken_body_gets_a_clear_status(encoding, sent, status):
    with pytest.raises(RequestError) as refused:
        decompress(sent, encoding, LIMIT)
    assert refused.value.status == status


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_stopped_at_the_limit(encoding):
    compressor = zstandard.ZstdCompressor().compressobj() if encoding == "zstd" else zlib.compressobj(9, wbits=31)
    block = bytes(2**20)
    bomb = b"".join(compressor.compress(block) for _ in range(64)) + compressor.flush()
    assert len(bomb) < LIMIT
    with pytest.raises(RequestError) as refused:
        decompress(bomb, encoding, LIMIT)
    assert refused.value.status == 413


def test_a_header_that_is_sent_twice_keeps_both_values():
    raw = [(b"X-Rolltape-Rollout", b"R1"), (b"accept", b"a/b"), (b"x-rolltape-rollout", b"R2")]
    assert joined_headers(raw) == {"x-rolltape-rollout": "R1, R2", "accept": "a/b"}


def test_a_body_wrapped_in_many_encodings_is_refused_before_any_is_undone():
    with pytest.raises(RequestError) as refused:
        decompress(b"never looked at", ", ".join(["gzip"] * 300), LIMIT)
    assert refused.value.status == 415
