"""`rolltape pool`: every verb, over a store as a run leaves it."""

import asyncio

import msgspec
import pytest

from rolltape.pool import Pool
from rolltape.store import TokenCaptureStore

from .conftest import call


@pytest.fixture
def store(tmp_path):
    """Four rollouts of one task: two finished with rewards, one crashed, one that is still open."""

    async def fill() -> None:
        store = TokenCaptureStore(tmp_path / "data")
        for index, (reward, ending) in enumerate(
            [(1.0, "finished"), (0.0, "finished"), (None, "crashed"), (None, None)]
        ):
            rollout = f"t-{index}"
            await store.create_rollout(rollout, {"task_id": "t", "harness": "h"})
            await store.put(call(rollout, "c1", [1, 2], [3, 4 + index], 1.0, policy_version="7"))
            if ending is not None:
                await store.set_outcome(rollout, reward=reward, ending=ending, labels={"task_id": "t", "harness": "h"})
        await store.close()

    asyncio.run(fill())
    return tmp_path / "data"


@pytest.fixture
def pool(store, tmp_path, rolltape):
    place = tmp_path / "pool"
    assert rolltape("pool", "add", "--dir", store, "--pool", place, "--run", "r1").status == 0
    return place


def test_the_finished_rollouts_of_a_store_are_added_once(rolltape, store, tmp_path):
    place = tmp_path / "pool"
    first = rolltape("pool", "add", "--dir", store, "--pool", place, "--json")
    again = rolltape("pool", "add", "--dir", store, "--pool", place, "--json")
    assert (first.json["added"], first.json["known"], first.json["run"]) == (3, 0, "data")
    assert (again.json["added"], again.json["known"]) == (0, 3)
    one = rolltape("pool", "add", "--dir", store, "--pool", place, "--rollout", "t-3")
    assert "1 rollouts of run data added" in one.out


def test_a_result_file_says_which_and_what(rolltape, store, tmp_path):
    results = tmp_path / "results.jsonl"
    line = {"_ng_rollout_id": "t-0", "task_id": "t", "rollout_index": 0, "harness": "h", "harness_version": "9"}
    results.write_bytes(msgspec.json.encode(line | {"reward": 0.5, "ending": "finished", "check_exit_code": 0}) + b"\n")
    place = tmp_path / "pool"
    assert rolltape("pool", "add", "--dir", store, "--pool", place, "--results", results, "--json").json["added"] == 1
    sql = "select harness_version, reward, reward_source, policy_versions from rollouts"
    assert rolltape("pool", "query", sql, "--pool", place, "--json").json == [
        {"harness_version": "9", "reward": 0.5, "reward_source": "check", "policy_versions": ["7"]}
    ]


def test_a_pool_is_listed_and_asked(rolltape, pool):
    assert [one["rollout_id"] for one in rolltape("pool", "ls", "--pool", pool, "--json").json] == ["t-0", "t-1", "t-2"]
    assert "t-1" not in rolltape("pool", "ls", "--pool", pool, "--where", "reward > 0").out
    said = rolltape("pool", "query", "select count(*) as n from rows", "--pool", pool)
    assert said.out.split() == ["n", "3"]


def test_filters_label_and_what_is_left_is_drawn(rolltape, pool, tmp_path):
    found = rolltape("pool", "filter", "--pool", pool, "--json").json
    assert found["failures"] == {"crashed": 1, "no_reward": 1}
    rows = tmp_path / "rows.jsonl"
    drawn = rolltape("pool", "sample", "--n", 5, "--where", "usable", "--pool", pool, "--out", rows, "--json").json
    assert (len(drawn["uids"]), drawn["rows"], drawn["lineage"]["where"]) == (2, 2, "usable")
    lines = [msgspec.json.decode(line) for line in rows.read_bytes().splitlines()]
    assert sorted(line["rollout_id"] for line in lines) == ["t-0", "t-1"]
    assert lines[0]["loss_mask"] == [0, 0, 1, 1]


def test_stale_needs_the_policy_that_trains(rolltape, pool):
    assert rolltape("pool", "filter", "stale", "--pool", pool).status == 1
    found = rolltape("pool", "filter", "stale", "--current", "9", "--pool", pool, "--json").json
    assert found["failures"] == {"stale": 3}


def test_ones_own_filter_is_called(rolltape, pool, tmp_path, monkeypatch):
    (tmp_path / "own_filters.py").write_text("def low(rollout):\n    return 'low' if rollout.reward == 0 else None\n")
    monkeypatch.chdir(tmp_path)
    found = rolltape("pool", "filter", "--call", "own_filters:low", "--pool", pool, "--json").json
    assert found["failures"] == {"own_filters:low": 1}
    assert rolltape("pool", "filter", "--call", "nowhere:low", "--pool", pool).status == 1


def test_rollouts_are_weighed_and_let_go(rolltape, pool):
    assert rolltape("pool", "weight", "0.5", "--where", "reward = 1", "--pool", pool, "--json").json["count"] == 1
    assert {one.row.rollout_id: one.pool_weight for one in Pool(pool).read()} == {"t-0": 0.5, "t-1": 1.0, "t-2": 1.0}
    rolltape("pool", "filter", "--pool", pool)
    dry = rolltape("pool", "retain", "--state", "filtered", "--dry-run", "--pool", pool, "--json").json
    assert len(dry["gone"]) == 1
    gone = rolltape("pool", "retain", "--state", "filtered", "--grace", "0", "--pool", pool, "--json").json
    assert gone["gone"] == dry["gone"]
    told = rolltape("pool", "stats", "--pool", pool, "--json").json
    assert (told["rollouts"], told["tombstones"]) == (2, 1)
    assert "rollouts             2" in rolltape("pool", "stats", "--pool", pool).out


def test_no_pool_and_no_filter_are_named(rolltape, pool, tmp_path):
    assert "there is no pool" in rolltape("pool", "ls", "--pool", tmp_path / "none").err
    assert "no filter is named 'crashd'" in rolltape("pool", "filter", "crashd", "--pool", pool).err
