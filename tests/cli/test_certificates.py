"""Certificates, requirements, other policies and profiles, and differences of training sets, on the command line."""

import asyncio
import json

from rolltape.store import TokenCaptureStore


async def rewarded_otherwise(directory):
    store = TokenCaptureStore(directory)
    await store.set_outcome("task-a-0", reward=0.125, ending="finished", labels={})
    await store.close()


def test_a_certificate_holds_until_the_store_changes(rolltape, store_dir, tmp_path):
    built = rolltape("rebuild", "--dir", store_dir, "--rollout", "task-a", "--json")
    file = tmp_path / "certificate.json"
    file.write_text(built.out)
    verify = ("verify", "--dir", store_dir, "--rollout", "task-a", "--certificate", file)

    held = rolltape(*verify, "--json")
    assert (held.status, held.json["holds"], held.json["differences"]) == (0, True, [])
    assert held.json["certificate"] == built.json["certificate"]
    assert "the certificate holds" in rolltape(*verify).out

    asyncio.run(rewarded_otherwise(store_dir))
    changed = rolltape(*verify)
    assert changed.status == 1
    assert "differs: the outcome, or what is known to be lost, has changed" in changed.out


def test_a_file_without_the_rollouts_certificate_is_refused(rolltape, store_dir, tmp_path):
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"certificate": {"rollout_id": "other", "checks": []}}))
    said = rolltape("verify", "--dir", store_dir, "--rollout", "task-a", "--certificate", file)
    assert said.status == 1
    assert "holds no certificate of" in said.err


def test_without_a_rollout_all_of_the_store_is_rebuilt_one_a_line(rolltape, store_dir):
    said = rolltape("rebuild", "--dir", store_dir, "--json")
    rollouts = [json.loads(line) for line in said.out.splitlines()]
    assert len(rollouts) == 3
    assert {"rows", "mask_sample", "metrics", "certificate"} <= rollouts[0].keys()


def test_another_policy_and_what_it_changes(rolltape, store_dir, tmp_path):
    before, policy = tmp_path / "before.jsonl", tmp_path / "policy.yaml"
    before.write_text(rolltape("rebuild", "--dir", store_dir, "--json").out)
    policy.write_text("kinds: {agent: context}\n")

    lost = rolltape("rebuild", "--dir", store_dir, "--policy", policy, "--diff", before, "--json").json
    assert (lost["tokens_gained"], lost["tokens_kept"], lost["same"]) == (0, 0, False)
    assert lost["tokens_lost"] == sum(one["lost"] for one in lost["by_rollout"].values()) > 0

    gained = rolltape("rebuild", "--dir", store_dir, "--diff-policy", policy, "--json").json
    assert gained["tokens_gained"] == lost["tokens_lost"]
    assert rolltape("rebuild", "--dir", store_dir, "--diff", before, "--json").json["same"]
    assert "gained" in rolltape("rebuild", "--dir", store_dir, "--diff-policy", policy).err


def test_a_policy_with_an_unknown_kind_is_refused_with_its_file(rolltape, store_dir, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("kinds: {compation: drop}\n")
    said = rolltape("rebuild", "--dir", store_dir, "--policy", policy)
    assert said.status == 1
    assert "policy.yaml: the policy names a kind 'compation'" in said.err


def test_another_profile_classifies_recorded_requests_anew(rolltape, store_dir):
    said = rolltape("rebuild", "--dir", store_dir, "--rollout", "task-a", "--profile", "mini-swe-agent", "--json")
    told = {node["kind_evidence"] for node in said.json["tree"]}
    assert {evidence.partition(" ")[0] for evidence in told} == {"mini-swe-agent"}


def test_export_leaves_out_what_says_less_than_is_required(rolltape, store_dir, tmp_path):
    said = rolltape("export", "--dir", store_dir, "--out", tmp_path / "rows.jsonl", "--require", "exact", "--json")
    assert said.json["rows"] == 0
    assert "usable, where exact is required" in said.json["left_out"]
    some = rolltape("export", "--dir", store_dir, "--out", tmp_path / "rows.jsonl", "--require", "usable", "--json")
    assert some.json["rows"] > 0
