"""What models, agents and files say is shown, and steers nothing."""

import asyncio
import os
import stat

from rolltape.cli.terminal import seen
from rolltape.store import TokenCaptureStore

from .conftest import call


def stored(folder, entry):
    async def fill():
        async with TokenCaptureStore(folder) as store:
            await store.put(entry)

    asyncio.run(fill())


def test_control_characters_are_made_visible():
    assert seen("a\x1b]0;t\x07b\x7f\x9b\u202e\tc\nd") == "a␛]0;t␇b␡\\u009b\\u202e\tc\nd"


def test_escape_sequences_in_a_rollout_reach_no_terminal_as_such(rolltape, tmp_path):
    items = ({"type": "message", "content": [{"type": "output_text", "text": "\x1b]0;pwned\x07 \x1b[2J"}]},)
    stored(tmp_path, call("r", "c\x1b[1m", [1], [2], 1.0, output_items=items, error="\x1b[3m"))
    for command in ("show", "tree"):
        said = rolltape(command, "r", "--dir", tmp_path)
        assert said.status == 0
        assert "\x1b" not in said.out


def test_equal_lines_of_a_reply_stay_lines(rolltape, tmp_path):
    items = ({"type": "message", "content": [{"type": "output_text", "text": "x\nfoo\nx"}]},)
    stored(tmp_path, call("r", "c", [1], [2], 1.0, output_items=items))
    shown = [line.rpartition("| ")[2].strip() for line in rolltape("show", "r", "--dir", tmp_path).out.splitlines()]
    assert [line for line in shown if line in ("x", "foo")] == ["x", "foo", "x"]


def test_an_export_never_takes_the_place_of_what_is_no_file(rolltape, tmp_path):
    stored(tmp_path, call("r", "c", [1], [2], 1.0))
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "link").symlink_to(tmp_path / "target.jsonl")
    (tmp_path / "folder").mkdir()
    try:
        assert rolltape("export", "--dir", tmp_path, "--out", tmp_path / "pipe").status == 0
        assert os.read(reader, 65536).startswith(b'{"row_id"')
    finally:
        os.close(reader)
    assert rolltape("export", "--dir", tmp_path, "--out", tmp_path / "link").status == 0
    refused = rolltape("export", "--dir", tmp_path, "--out", tmp_path / "folder")
    assert (refused.status, str(tmp_path / "folder") in refused.err) == (1, True)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target.jsonl").read_bytes().startswith(b'{"row_id"')


def test_an_export_to_where_nothing_can_be_written_names_the_place_that_was_asked_for(rolltape, tmp_path):
    stored(tmp_path, call("r", "c", [1], [2], 1.0))
    said = rolltape("export", "--dir", tmp_path, "--out", tmp_path / "no" / "such.jsonl")
    assert said.status == 1
    assert f"cannot write {tmp_path}/no/such.jsonl" in said.err
