"""The commands that read: what they print, what they refuse, and how they say it."""

import json
import sqlite3

import pytest

from rolltape.cli.commands import COMMANDS

LINE = {
    "rollout_id": "r",
    "model_call_id": "c1",
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
}


def entries_file(path, *changes):
    path.write_text("".join(json.dumps(LINE | change) + "\n" for change in changes))
    return path


def test_rebuild_turns_a_file_of_entries_into_rows(rolltape, tmp_path):
    file = entries_file(tmp_path / "e.jsonl", {})

    said = rolltape("rebuild", "--entries", file, "--json")

    (row,) = said.json["rows"]
    assert said.status == 0
    assert (row["token_ids"], row["loss_mask"], row["log_probs"]) == ([1, 2, 3], [0, 0, 1], [None, None, -0.5])
    assert said.json["mask_sample"] is False
    assert said.json["metrics"]["delivered_fraction"] == 1.0


def test_rebuild_notes_unknown_keys_on_stderr(rolltape, tmp_path):
    said = rolltape("rebuild", "--entries", entries_file(tmp_path / "e.jsonl", {"colour": 1}), "--json")

    assert "colour" in said.err
    assert said.json["rows"]


def test_rebuild_wants_to_know_which_of_several_rollouts(rolltape, tmp_path):
    file = entries_file(tmp_path / "e.jsonl", {}, {"rollout_id": "s"})

    refused = rolltape("rebuild", "--entries", file, "--json")

    assert refused.status == 1
    assert "holds 2 rollouts: r, s\n\nhint: name one with --rollout" in refused.err
    assert rolltape("rebuild", "--entries", file, "--rollout", "s", "--json").json["rollout_id"] == "s"
    assert "holds no rollout 't'" in rolltape("rebuild", "--entries", file, "--rollout", "t").err


def test_rebuild_reads_a_rollout_of_a_store_by_the_beginning_of_its_id(rolltape, store_dir):
    said = rolltape("rebuild", "--dir", store_dir, "--rollout", "task-a", "--json")

    (row,) = said.json["rows"]
    assert row["token_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert row["loss_mask"] == [0, 0, 0, 1, 1, 0, 1]


def test_a_beginning_that_several_ids_share_is_refused_with_their_names(rolltape, store_dir):
    said = rolltape("show", "task-b", "--dir", store_dir)

    assert said.status == 1
    assert "task-b-0, task-b-1" in said.err
    assert "no rollout 'zzz'" in rolltape("tree", "zzz", "--dir", store_dir).err


def test_ls_lists_rollouts_with_their_state(rolltape, store_dir):
    shown, listed = rolltape("ls", "--dir", store_dir), rolltape("ls", "--dir", store_dir, "--json").json

    assert "incomplete" in next(line for line in shown.out.splitlines() if "task-b-1" in line)
    assert {state["rollout_id"]: state["n_entries"] for state in listed} == {
        "task-a-0": 2,
        "task-b-0": 1,
        "task-b-1": 1,
    }


def test_show_marks_trained_tokens_without_colour_too(rolltape, store_dir):
    said = rolltape("show", "task-a-0", "--dir", store_dir)

    assert "[4:-0.50] [5:-0.50]" in said.out
    assert "ask c2" in said.out
    assert "say c2" in said.out
    assert "\x1b" not in said.out


def test_show_as_json_has_each_call_with_its_trained_tokens(rolltape, store_dir):
    shown = rolltape("show", "task-a-0", "--dir", store_dir, "--json").json

    assert [(call["model_call_id"], call["trained"]) for call in shown["calls"]] == [("c1", [1, 1]), ("c2", [1])]
    assert shown["outcome"]["reward"] == 1.0


def test_tree_hangs_a_call_below_the_one_it_extends(rolltape, store_dir):
    drawn = rolltape("tree", "task-a-0", "--dir", store_dir).out.splitlines()
    nodes = rolltape("tree", "task-a-0", "--dir", store_dir, "--json").json["tree"]

    assert drawn[1].index("c1") < drawn[2].index("c2")
    assert {node["model_call_id"]: node["parent"] for node in nodes} == {"c1": None, "c2": "c1"}


def test_export_leaves_out_masked_and_crashed_rollouts_and_counts_them(rolltape, store_dir, tmp_path):
    out = tmp_path / "rows.jsonl"

    said = rolltape("export", "--dir", store_dir, "--out", out)

    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["rollout_id"] == "task-a-0"
    assert "1 crashed, 1 masked" in said.err
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["rows.jsonl"]


def test_export_writes_everything_when_asked(rolltape, store_dir):
    said = rolltape("export", "--dir", store_dir, "--include-masked", "--out", "-")

    masked = {row["rollout_id"]: row["mask_sample"] for row in map(json.loads, said.out.splitlines())}
    assert masked == {"task-a-0": False, "task-b-0": False, "task-b-1": True}


def test_export_says_in_json_what_it_wrote_and_left_out(rolltape, store_dir, tmp_path):
    said = rolltape("export", "--dir", store_dir, "--out", tmp_path / "rows.jsonl", "--json")

    assert (said.json["rows"], said.json["rollouts"]) == (1, 1)
    assert said.json["left_out"] == {"crashed": 1, "masked": 1}
    assert rolltape("export", "--dir", store_dir, "--out", "-", "--json").status == 1


def test_show_says_why_a_rollout_is_masked(rolltape, store_dir):
    shown, told = (
        rolltape("show", "task-b-1", "--dir", store_dir),
        rolltape("show", "task-b-1", "--dir", store_dir, "--json"),
    )

    (reason,) = told.json["mask_reasons"]
    assert reason.startswith("incomplete: ")
    assert f"masked, a trainer skips this rollout: {reason}" in shown.out


def test_a_failed_export_leaves_the_old_file_alone(rolltape, store_dir, tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text("old")

    assert rolltape("export", "--dir", store_dir, "--rollout", "zzz", "--out", out).status == 1
    assert out.read_text() == "old"


def test_verify_says_that_a_sound_store_is_sound(rolltape, store_dir):
    said = rolltape("verify", "--dir", store_dir)

    assert said.status == 0
    assert "every digest holds" in said.out


def test_verify_finds_a_changed_byte_and_exits_with_1(rolltape, store_dir):
    with sqlite3.connect(store_dir / "rolltape.db") as db:
        db.execute("UPDATE entries SET call_id = 'c9' WHERE call_id = 'c1'")
    db.close()

    said = rolltape("verify", "--dir", store_dir, "--json")

    assert said.status == 1
    assert said.json["problems"]


@pytest.mark.parametrize("command", ["ls", "verify", "show x", "tree x", "rebuild --rollout x", "export --out y"])
def test_reading_never_makes_a_store(rolltape, tmp_path, command):
    said = rolltape(*command.split(), "--dir", tmp_path / "nothing")

    assert said.status == 1
    assert said.err.startswith("error: there is no store at")
    assert "\n\nhint: " in said.err
    assert not (tmp_path / "nothing").exists()


def test_asking_wrongly_is_status_2_with_a_hint_and_no_traceback(rolltape):
    for arguments in (["lss"], ["ls", "--jsn"], ["show"], ["rebuild", "--delivery", "pigeon"]):
        said = rolltape(*arguments)
        assert said.status == 2
        assert said.err.startswith("error: ")
        assert "\n\nhint: rolltape" in said.err
        assert "Traceback" not in said.err


def test_an_unreadable_file_is_an_error_that_names_it(rolltape, tmp_path):
    said = rolltape("rebuild", "--entries", tmp_path / "none.jsonl")

    assert said.status == 1
    assert "none.jsonl: No such file" in said.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(rolltape, name):
    said = rolltape(name, "--help")

    assert said.status == 0
    assert f"  rolltape {name}" in said.out
