"""What is added to a pool comes back to the bit, is found by SQL, and is drawn the same from the same seed."""

import math
from dataclasses import asdict, replace
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolltape.errors import ConfigError, StoreError
from rolltape.pool import Pool, Provenance, provenance_of
from rolltape.pool.convert import READ, rows_of, rows_table
from rolltape.record import Row, Span

from .rollouts import made, put

FIELDS = ("row_id", "rollout_id", "spans", "kind", "weight", "media", "advantage")


@pytest.fixture
def pool(tmp_path):
    return Pool(tmp_path / "pool", create=True)


def same(one: Row, other: Row) -> bool:
    arrays = ("token_ids", "loss_mask", "log_probs")
    bits = all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in arrays)
    kinds = all(getattr(one, name).dtype == getattr(other, name).dtype for name in arrays)
    rewards = one.reward == other.reward or (math.isnan(one.reward) and math.isnan(other.reward))
    return bits and kinds and rewards and all(getattr(one, name) == getattr(other, name) for name in FIELDS)


FLOATS = st.floats(-50, 0, width=32)
WORDS = st.text(max_size=8).filter(lambda text: max(text, default=" ") < "\ud800")
TOKENS = st.tuples(st.integers(0, 2**31 - 1), st.booleans(), FLOATS)


@st.composite
def rows(draw):
    tokens = draw(st.lists(TOKENS, max_size=40))
    ids, mask, log_probs = zip(*tokens, strict=True) if tokens else ((), (), ())
    span = Span(draw(WORDS), 0, len(ids), draw(st.booleans()), draw(st.none() | WORDS), "raw", draw(st.floats(0, 9)))
    return Row(
        row_id=draw(WORDS),
        rollout_id="r",
        token_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask, np.int8),
        log_probs=np.where(np.array(mask, bool), np.array(log_probs, np.float32), np.float32(np.nan)),
        spans=(span,) * draw(st.integers(0, 3)),
        kind=draw(WORDS),
        reward=draw(st.none() | st.floats()),
        weight=draw(st.floats(allow_nan=False)),
        media=draw(st.sampled_from([(), ({"type": "image", "sha256": "x"},)])),
        advantage=draw(st.none() | st.floats(allow_nan=False)),
    )


_folders = count()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(added=st.lists(rows(), min_size=1, max_size=4))
def test_any_row_is_read_back_to_the_bit(tmp_path, added):
    pool = Pool(tmp_path / f"{next(_folders)}", create=True)
    _, rebuilt = made("t-0")
    pool.add(replace(rebuilt, rows=tuple(added)), Provenance(run="r"))

    read = [one.row for one in pool.read("true")]
    assert len(read) == len(added)
    assert all(same(one, replace(other, rollout_id="t-0")) for one, other in zip(read, added, strict=True))


def test_the_rows_of_a_rollout_come_back_as_they_were_added(pool):
    one, rebuilt = made("t-0")
    pool.add(rebuilt, provenance_of(one, rebuilt, run="a run / with = signs"))
    assert all(same(read.row, row) for read, row in zip(pool.read(), rebuilt.rows, strict=True))


def test_a_batch_of_arrow_is_rows_too():
    _, rebuilt = made("t-0")
    table = rows_table([("u", rebuilt.rows)], "p").to_batches()[0]
    told = {"rollout_id": ["t-0"], "reward": [1.0], "pool_weight": [0.5]}
    batch = pa.RecordBatch.from_pydict({name: told[name] if name in told else table.column(name) for name in READ})
    assert [one.pool_weight for one in rows_of(batch)] == [0.5]


def test_a_rollout_says_where_it_comes_from(pool):
    result = {
        "task_id": "t", "rollout_index": 0, "harness": "h", "harness_version": "2", "reward": 0.5, "ending": "finished",
        "check_exit_code": 0, "exclude": False, "excluded_reason": None, "seconds": 3.5,
    }  # fmt: skip
    put(pool, "t-0-a2", result=result)
    line = pool.query("select * from rollouts").to_pylist()[0]
    wanted = {
        "run": "run-1", "task_id": "t", "group_id": "t", "attempt": 2, "harness": "h", "harness_version": "2",
        "engine": "scripted", "model": "tiny", "policy_versions": ["3"], "sampling": '{"temperature":1.0}',
        "finish_reason": "stop", "reward": 0.5, "reward_source": "check", "verdict": "usable", "masked": False,
        "calls": 3, "usable": True, "filtered": [],
    }  # fmt: skip
    assert {name: line[name] for name in wanted} == wanted
    assert line["certificate_digest"].startswith("sha256:")


def test_parts_are_filed_by_run_and_policy_version(pool, tmp_path):
    put(pool, "t-0", run="night/1")
    put(pool, "t-1", policy_version=None)
    put(pool, "t-2", policy_version_end="4")
    folders = {str(path.parent.relative_to(tmp_path / "pool" / "rows")) for path in tmp_path.rglob("rows/**/*.parquet")}
    assert folders == {"run=night%2F1/policy=3", "run=run-1/policy=unknown", "run=run-1/policy=mixed"}


def test_adding_the_same_again_changes_nothing(pool):
    assert put(pool, "t-0").uid == put(pool, "t-0").uid
    assert pool.query("select * from rollouts").num_rows == 1
    assert len(list(pool.read())) == 1


def test_another_reward_is_another_line(pool):
    assert put(pool, "t-0", reward=1.0).uid != put(pool, "t-0", reward=0.0).uid
    assert pool.query("select * from rollouts").num_rows == 2


def test_rows_are_streamed_in_batches_with_the_columns_asked_for(pool):
    for index in range(7):
        put(pool, f"t-{index}", reward=float(index % 2))
    batches = list(pool.rows("reward > 0", columns=["rollout_id", "reward"], batch=2))
    assert sorted(name for one in batches for name in one["rollout_id"].to_pylist()) == ["t-1", "t-3", "t-5"]
    assert all(one.schema.names == ["rollout_id", "reward"] for one in batches)
    assert all(one.num_rows <= 2 for one in batches)


def test_an_empty_pool_answers(pool):
    assert list(pool.read()) == []
    assert pool.query("select count(*) as n from rows").to_pylist() == [{"n": 0}]
    assert pool.stats()["rollouts"] == 0


def test_a_rollout_without_rows_is_in_the_pool(pool):
    put(pool, "t-0", calls=0)
    assert pool.query("select masked, rows from rollouts").to_pylist() == [{"masked": True, "rows": 0}]


def test_sql_that_cannot_be_understood_is_the_askers_error(pool):
    with pytest.raises(ConfigError, match="does not understand"):
        pool.query("select nonsense from rollouts")


def test_where_no_pool_is_none_is_made(tmp_path):
    with pytest.raises(ConfigError, match="no pool"):
        Pool(tmp_path)


def test_a_pool_lives_in_any_filesystem_of_pyarrow(tmp_path):
    elsewhere = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    pool = Pool("deep/pool", filesystem=elsewhere, create=True)
    for index in range(3):
        put(pool, f"t-{index}")
    drawn = pool.sample(2, seed=1)
    pool.compact(grace=0)
    _, rebuilt = made("t-0")
    assert same(next(pool.read("rollout_id = 't-0'")).row, rebuilt.rows[0])
    assert [one.uid for one in pool.read(within=drawn.set_id)] == list(drawn.uids)
    assert Pool(f"file://{tmp_path}/deep/pool").stats()["rollouts"] == 3


def test_a_sample_depends_on_the_seed_and_not_on_how_things_are_stored(pool):
    for index in range(12):
        put(pool, f"t-{index}")
    first, other = pool.sample(5, seed=1), pool.sample(5, seed=2)
    pool.compact(grace=0)
    again = pool.sample(5, seed=1)
    assert first.uids == again.uids
    assert first.uids != other.uids
    assert len(set(first.uids)) == 5


def test_a_sample_is_of_what_the_condition_leaves(pool):
    for index in range(20):
        put(pool, f"t-{index}", reward=float(index < 4))
    drawn = pool.sample(4, where="reward > 0")
    assert len(drawn.uids) == 4
    assert {one.row.reward for one in pool.read(within=drawn.set_id)} == {1.0}


def test_a_group_comes_whole_or_not_at_all(pool):
    for task in "abcd":
        for index in range(3):
            put(pool, f"{task}-{index}")
    drawn = pool.sample(2, by="group_id", seed=3)
    groups = [one.row.rollout_id[0] for one in pool.read(within=drawn.set_id)]
    assert len(groups) == 6
    assert sorted(map(groups.count, set(groups))) == [3, 3]
    assert len(pool.sample(2, by="group_id", each=2).uids) == 4


def test_a_set_says_what_it_came_from(pool):
    for index in range(6):
        put(pool, f"t-{index}")
    first = pool.sample(4, seed=7, where="usable")
    second = pool.sample(2, seed=8, within=first.set_id)

    assert set(second.uids) <= set(first.uids)
    told = pool.set(second.set_id)
    assert told == second
    assert (told.lineage.parents, told.lineage.seed, told.lineage.count) == ((first.set_id,), 8, 2)
    assert (first.lineage.where, first.lineage.pool_id) == ("usable", pool.files.pool_id)
    assert [one.id for one in pool.lineages()] == [first.set_id, second.set_id]
    with pytest.raises(StoreError, match="no set"):
        pool.set("sample-0")


def test_a_weight_goes_with_the_rows(pool):
    put(pool, "t-0", reward=1.0)
    put(pool, "t-1", reward=0.0)
    pool.weight(0.5)
    pool.weight("1 + reward", where="reward > 0")
    assert {one.row.rollout_id: one.pool_weight for one in pool.read()} == {"t-0": 2.0, "t-1": 0.5}
    with pytest.raises(ConfigError, match="weights"):
        pool.weight("-1")


def test_another_check_gives_another_reward_and_keeps_the_first(pool):
    uid = put(pool, "t-0", reward=1.0).uid
    pool.rescore({uid: 0.25}, source="strict-check")
    line = pool.query("select reward, recorded_reward, reward_source from rollouts").to_pylist()[0]
    assert line == {"reward": 0.25, "recorded_reward": 1.0, "reward_source": "strict-check"}
    assert [one.row.reward for one in pool.read()] == [0.25]


def test_the_latest_label_of_a_name_stands(pool):
    put(pool, "t-0")
    pool.label("note", "first", by="ann")
    pool.label("note", "second", by="ben")
    assert pool.query("select value, said_by from labels").to_pylist() == [{"value": "second", "said_by": "ben"}]


def test_what_is_too_old_masked_or_too_much_goes(pool):
    for index in range(4):
        put(pool, f"t-{index}")
    put(pool, "t-9", incomplete=True)
    assert len(pool.retain(state="masked", dry_run=True).gone) == 1
    assert pool.query("select * from rollouts").num_rows == 5

    masked = pool.retain(state="masked")
    assert list(masked.gone.values()) == ["state: masked"]
    size = sum(part.size for part in pool.files.parts("rows")) // 5
    over = pool.retain(size=2 * size + size // 2)
    assert {one.row.rollout_id for one in pool.read()} == {"t-2", "t-3"}
    assert len(over.gone) == 2
    assert len(pool.retain(age=0).gone) == 2
    assert list(pool.read()) == []


def test_what_was_let_go_leaves_the_disk_when_it_is_compacted(pool, tmp_path):
    put(pool, "secret-0")
    put(pool, "t-1")
    pool.retain(age=0, where="task_id = 'secret'")
    pool.compact(grace=0)
    assert [one.row.rollout_id for one in pool.read()] == ["t-1"]
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("rows/**/*.parquet"))


def test_numbers_of_a_pool(pool):
    put(pool, "t-0")
    put(pool, "t-1", ending="crashed", reward=None)
    told = pool.stats()
    assert (told["rollouts"], told["rows"], told["loss_tokens"], told["mean_reward"]) == (2, 2, 18, 1.0)
    assert told["by"]["ending"] == {"crashed": 1, "finished": 1}
    assert told["parts"]["rows"] == 2


def test_the_columns_of_provenance_are_those_of_the_table():
    from rolltape.pool.schema import ROLLOUTS

    assert set(asdict(Provenance(run="r"))) <= set(ROLLOUTS.names)
