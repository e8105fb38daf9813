"""A filter labels with a reason and deletes nothing; groups are judged by the members that have a vote."""

import pytest

from rolltape import registry
from rolltape.errors import ConfigError
from rolltape.pool import Pool
from rolltape.pool.filters import DEFAULT, ByRollout, Candidate
from rolltape.pool.filters.agreement import Agreement
from rolltape.pool.filters.duplicate import Duplicate
from rolltape.pool.filters.no_variance import NoVariance
from rolltape.pool.filters.stale import Stale

from .rollouts import put


@pytest.fixture
def pool(tmp_path):
    return Pool(tmp_path / "pool", create=True)


def one(name, **options):
    return registry.load("filter", name)(**options)


def defaults():
    return [one(name) for name in DEFAULT]


def reasons(found):
    return {name: reason for held in found.reasons.values() for name, reason in held.items()}


CASES = [
    ("crashed", {"ending": "crashed"}, "the harness crashed"),
    ("crashed", {"ending": "interrupted"}, "the run was cut off"),
    ("timed_out", {"ending": "timed_out"}, "ended at the time limit"),
    ("environment", {"ending": "could_not_start", "excluded_reason": "could_not_start: no git"}, "no git"),
    ("environment", {"ending": "finished", "excluded": True, "excluded_reason": "the check could not start"}, "check"),
    ("incomplete", {"incomplete": True, "mask_reasons": ["incomplete: put failed"]}, "put failed"),
    ("masked", {"masked": True, "mask_reasons": ["unresolved_retries: a, b"]}, "unresolved_retries"),
    ("no_reward", {"reward": None}, "no reward"),
    ("no_reward", {"reward": float("nan")}, "the reward is nan"),
    ("truncated", {"finish_reason": "length"}, "cut at its length"),
    ("truncated", {"ending": "budget"}, "budget"),
    ("empty", {"loss_tokens": 0}, "no token"),
]


@pytest.mark.parametrize(("name", "known", "reason"), CASES)
def test_each_filter_names_its_reason(name, known, reason):
    fine = {"reward": 1.0, "ending": "finished", "finish_reason": "stop", "loss_tokens": 9}
    bad, good = Candidate(uid="bad", **(fine | known)), Candidate(uid="good", **fine)
    found = dict(one(name).find([bad, good]))
    assert list(found) == ["bad"]
    assert reason in found["bad"]


def test_every_filter_is_found_by_the_name_of_its_labels():
    options = {"stale": {"current": "1"}}
    assert all(one(name, **options.get(name, {})).name == name for name in registry.names("filter"))
    assert set(DEFAULT) < set(registry.names("filter"))


def test_a_version_too_far_behind_is_stale():
    versions = {"old": ("3",), "fresh": ("7",), "mixed": ("3", "8"), "silent": (), "odd": ("main",)}
    found = dict(Stale(current="8", lag=2).find([Candidate(uid=k, policy_versions=v) for k, v in versions.items()]))
    assert found == {
        "old": "sampled by policy version 3, 5 behind 8",
        "mixed": "sampled by policy version 3, 5 behind 8",
        "silent": "nobody recorded which weights sampled it",
        "odd": "policy version 'main' has no place in an order",
    }
    named = Stale(current="c", lag=1, order=["a", "b", "c"])
    assert [uid for uid, _ in named.find([Candidate(uid=v, policy_versions=(v,)) for v in "abc"])] == ["a"]
    with pytest.raises(ConfigError, match="order"):
        Stale(current="main")


def test_agreement_below_the_threshold_fails_and_an_unknown_one_passes():
    known = {"low": 0.98, "high": 0.999, "undefined": float("nan"), "unknown": None}
    found = Agreement().find([Candidate(uid=uid, agreement=value) for uid, value in known.items()])
    assert [uid for uid, _ in found] == ["low", "undefined"]


def test_a_copy_is_a_duplicate_and_an_equal_draw_is_none():
    same = {"tokens_digest": "d", "tokens": 5, "task_id": "t"}
    rollouts = [
        Candidate(uid="1", run="a", rollout_id="t-0", added_at=1.0, **same),
        Candidate(uid="2", run="b", rollout_id="t-0", added_at=2.0, **same),
        Candidate(uid="3", run="b", rollout_id="t-1", added_at=0.5, **same),
    ]
    assert [uid for uid, _ in Duplicate().find(rollouts)] == ["1"]
    assert [uid for uid, _ in Duplicate(same_tokens=True).find(rollouts)] == ["1", "3"]


def test_a_group_is_judged_by_the_members_that_have_a_vote():
    """Case ED-04: a reward that is NaN, and a masked rollout, have none."""
    group = {"group_id": "g1", "run": "r"}
    for third in ({"reward": float("nan")}, {"reward": 0.0, "masked": True}):
        known = [{"reward": 1.0}, {"reward": 1.0}, third, {"reward": 1.0}]
        members = [Candidate(uid=str(n), **group, **more) for n, more in enumerate(known)]
        found = dict(NoVariance().find(members))
        assert found == dict.fromkeys("013", "group g1: all 3 rewards are 1")
    open_group = [Candidate(uid=str(n), reward=float(n), **group) for n in range(2)]
    assert list(NoVariance().find(open_group)) == []


def test_labels_say_why_and_nothing_is_deleted(pool):
    put(pool, "a-0", reward=1.0)
    put(pool, "a-1", reward=0.0)
    put(pool, "a-2", reward=None, ending="crashed")
    put(pool, "a-3", reward=1.0, incomplete=True)
    found = pool.filter(defaults())

    assert (found.evaluated, found.passed) == (4, 2)
    assert found.failures == {"crashed": 1, "incomplete": 1, "masked": 1, "no_reward": 1}
    assert found.corrupted_fraction == 0.5
    lines = pool.query("select rollout_id, filtered, usable from rollouts order by rollout_id").to_pylist()
    assert [one["usable"] for one in lines] == [True, True, False, False]
    assert lines[2]["filtered"] == ["crashed: the harness crashed", "no_reward: there is no reward"]
    assert len(list(pool.read())) == 4
    assert len(list(pool.read("usable"))) == 2
    assert pool.stats()["corrupted_fraction"] == 0.5


def test_a_label_says_what_it_came_from(pool):
    put(pool, "a-0", ending="crashed")
    found = pool.filter(defaults(), where="run = 'run-1'")
    said = pool.query("select distinct lineage, said_by from labels").to_pylist()
    assert said == [{"lineage": found.lineage, "said_by": "filter"}]
    told = next(told for told in pool.lineages() if told.id == found.lineage)
    assert (told.kind, told.where, told.count) == ("filter", "run = 'run-1'", 1)


def test_a_crash_leaves_the_group_before_its_spread_is_judged(pool):
    put(pool, "a-0", reward=1.0)
    put(pool, "a-1", reward=1.0)
    put(pool, "a-2", reward=0.0, ending="crashed")
    assert pool.filter(defaults()).failures == {"crashed": 1, "no_variance": 2}


def test_what_failed_and_passes_now_is_labelled_so(pool):
    put(pool, "a-0")
    pool.filter([Stale(current="9")])
    assert pool.query("select usable from rollouts").to_pylist() == [{"usable": False}]
    pool.filter([Stale(current="3")])
    assert pool.query("select usable from rollouts").to_pylist() == [{"usable": True}]
    assert pool.query("select value, reason from labels").to_pylist() == [{"value": "pass", "reason": "passes now"}]


def test_filtering_again_writes_nothing_new(pool):
    put(pool, "a-0", ending="crashed")
    pool.filter(defaults())
    pool.filter(defaults())
    assert len(pool.files.parts("labels")) == 1


def test_ones_own_callable_sees_the_rows(pool):
    put(pool, "a-0")
    put(pool, "a-1", calls=1)

    def few(rollout: Candidate) -> str | None:
        return "too few tokens" if sum(row.loss_tokens for row in rollout.rows()) < 5 else None

    short = ByRollout("short", few)
    assert reasons(pool.filter([short])) == {"short": "too few tokens"}
