"""Prompts are stored as a prefix of an earlier sequence plus a tail, and come back exactly, whatever the tree."""

import asyncio
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolltape import tokens
from rolltape.record import TokenEntry
from rolltape.store import TokenCaptureStore
from rolltape.store.sqlite import verify
from rolltape.store.tables import codec
from rolltape.store.tables.lineage import Lineage, Lineages
from rolltape.testing.contracts import assert_same, entry

short = st.lists(st.integers(0, 2), max_size=6)


@st.composite
def trees(draw: st.DrawFn) -> list[TokenEntry]:
    """Calls whose prompts extend, cut, repeat or ignore what was there before; few ids, so that prefixes collide."""
    sequences: list[list[int]] = [[]]
    calls = []
    for number in range(draw(st.integers(1, 14))):
        before = draw(st.sampled_from(sequences))
        kept = draw(st.integers(0, len(before))) if draw(st.booleans()) else len(before)
        prompt, generation = before[:kept] + draw(short), draw(short)
        sequences.append(prompt + generation)
        text = "".join(map(str, prompt)).encode() * 20
        calls.append(entry(f"k{number}", prompt, generation, request_text=text))
    return calls


async def store_and_read(folder: Path, calls: list[TokenEntry], ids_kept: int) -> None:
    """Put half, restart, put the rest, read twice. `ids_kept` small: lineages are read again all the time."""
    half = len(calls) // 2
    for part in (calls[:half], calls[half:]):
        async with TokenCaptureStore(folder) as store:
            store._shelf.lineages = Lineages(ids_kept)
            for one in part:
                await store.put(one)
                await store.put(entry("other", [9], [9], rollout_id=f"side-{one.model_call_id}"))
    async with TokenCaptureStore(folder) as store:
        snapshot = await store.read("R", texts=True)
    assert snapshot is not None
    tree: tokens.PrefixTree[str] = tokens.PrefixTree()
    for got, wanted in zip(snapshot.entries, calls, strict=True):
        assert_same(got, wanted)
        match = tree.match(wanted.prompt_token_ids)
        assert (got.parent_call_id, got.common_prefix_len) == (match.whole, match.depth)
        tree.add(wanted.sequence, wanted.model_call_id)
    assert verify(folder).sound


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees(), st.sampled_from([1, 1_000_000]))
def test_any_tree_of_calls_comes_back_exactly(calls: list[TokenEntry], ids_kept: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(store_and_read(Path(folder), calls, ids_kept))


@settings(max_examples=100, deadline=None)
@given(trees())
def test_a_lineage_answers_as_the_plain_prefix_tree_does(calls: list[TokenEntry]) -> None:
    lineage, tree, sequences = Lineage(), tokens.PrefixTree[int](), {}
    for key, call in enumerate(calls, 1):
        prompt = call.prompt_token_ids
        found, match = lineage.find(prompt), tree.match(prompt)
        assert (found.parent, found.parent_length, found.depth) == (match.whole, match.whole_length, match.depth)
        assert found.digest.hex() == tokens.digest(prompt).removeprefix("sha256:")
        if found.base is not None:
            assert sequences[found.base][: found.depth] == prompt.tolist()[: found.depth]
        lineage.add(key, str(key), prompt, call.generation_token_ids, found)
        tree.add(call.sequence, key)
        sequences[key] = call.sequence.tolist()
    for key, sequence in sequences.items():
        assert lineage.prefix(key, len(sequence)).tolist() == sequence  # type: ignore[union-attr]
    assert lineage.prefix(99, 1) is None


def test_the_lineages_written_last_are_kept_within_their_limit() -> None:
    lineages = Lineages(ids_kept=1_000)
    for rollout in range(20):
        lineage, ids = lineages.get(rollout), np.arange(300, dtype=np.int32)
        lineage.add(1, "k1", ids, ids[:0], lineage.find(ids))
    assert len(lineages) == 4
    assert [lineages.get(rollout).cursor for rollout in (19, 18, 0)] == [1, 1, 0]


def chain(calls: int, length: int) -> list[TokenEntry]:
    """A rollout of so many calls that ends at `length` ids; 3/8 of the new ids are sampled."""
    rng = np.random.default_rng(0)
    new = length // calls
    ids = rng.integers(0, 150_000, length, dtype=np.int32)
    entries = []
    for number in range(calls):
        cut, end = number * new + new * 5 // 8, (number + 1) * new
        entries.append(
            entry(f"k{number}", ids[:cut], ids[cut:end], generation_log_probs=-rng.exponential(1, end - cut))  # type: ignore[arg-type]
        )
    return entries


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def test_a_chain_is_frozen_as_slices_of_one_buffer(tmp_path: Path) -> None:
    calls = chain(200, 128_000)
    async with TokenCaptureStore(tmp_path) as store:
        await asyncio.gather(*(store.put(one) for one in calls))
        await store.freeze("R")
        snapshot = await store.freeze("R")
        tracemalloc.start()
        await store.freeze("R")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len({id(one.prompt_token_ids.base) for one in snapshot.entries}) == 1
    assert np.array_equal(snapshot.entries[-1].sequence, calls[-1].sequence)
    assert peak < 16 * 2**20
    assert size_of(tmp_path) < 1_200_000


async def test_retries_at_depth_cost_no_copies(tmp_path: Path) -> None:
    """200 attempts at one prompt of 20,000 ids stay one prompt on disk and in memory."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 150_000, 20_000, dtype=np.int32)
    async with TokenCaptureStore(tmp_path) as store:
        puts = [store.put(entry(f"k{i}", prompt, rng.integers(0, 9, 8).tolist())) for i in range(200)]  # type: ignore[arg-type]
        await asyncio.gather(*puts)
        snapshot = await store.freeze("R")
    assert len({id(one.prompt_token_ids.base) for one in snapshot.entries}) == 1
    assert size_of(tmp_path) < 300_000


async def test_texts_of_a_chain_are_not_quadratic(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text, texts = b'{"messages":[', []
    async with TokenCaptureStore(tmp_path) as store:
        for number in range(100):
            text += rng.bytes(500).hex().encode()
            texts.append(text)
            await store.put(entry(f"k{number}", [1] * (number + 1), [], request_text=text))
        snapshot = await store.read("R", texts=True)
    assert snapshot is not None
    assert [one.request_text for one in snapshot.entries] == texts
    assert size_of(tmp_path) < 400_000


async def test_a_store_without_texts_keeps_none(tmp_path: Path) -> None:
    async with TokenCaptureStore(tmp_path, texts=False) as store:
        await store.put(entry("k1", [1], [2], request_text=b"secret", output_items=({"text": "secret"},)))
        snapshot = await store.read("R", texts=True)
    assert snapshot is not None
    assert (snapshot.entries[0].request_text, snapshot.entries[0].output_items) == (None, ())
    assert b"secret" not in (tmp_path / "rolltape.db").read_bytes()


async def test_routed_experts_come_back_with_type_and_shape(tmp_path: Path) -> None:
    experts = np.arange(24, dtype=np.uint8).reshape(3, 4, 2)
    async with TokenCaptureStore(tmp_path) as store:
        await store.put(wanted := entry("k1", [1], [60, 2], routed_experts=experts))
        got = (await store.freeze("R")).entries[0]
    assert_same(got, wanted)


def test_zstd_is_kept_only_where_it_pays() -> None:
    packer = codec.Packer()
    noise, ids = np.random.default_rng(0).bytes(4_000), codec.id_bytes(np.arange(1_000, dtype=np.int32))
    assert packer.pack(noise, codec.IDS) == (noise, 0)
    packed, flag = packer.pack(ids, codec.IDS)
    assert flag == codec.IDS
    assert len(packed) < len(ids)
    assert packer.unpack(packed, flag) == ids
