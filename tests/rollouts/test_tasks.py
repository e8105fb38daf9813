"""The task file is read strictly, before anything starts."""

from pathlib import Path

import pytest

from rolltape.errors import ConfigError
from rolltape.rollouts import Task, read_tasks


def test_tasks_come_in_the_order_of_the_file_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(
        '{"id": "b", "prompt": "x", "files": {"a/b.txt": "hi"}}\n\n{"id": "a", "prompt": "y", "check": "c"}'
    )

    assert read_tasks(file) == (Task("b", "x", files={"a/b.txt": "hi"}), Task("a", "y", check="c"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "a"}', "missing required field `prompt`"),
        ('{"id": "a", "prompt": ""}', "length >= 1"),
        ('{"id": "a", "prompt": "x", "chekc": "true"}', "unknown field `chekc`"),
        ('{"id": "a", "prompt": 3}', "Expected `str`, got `int`"),
        ('{"id": "ok", "prompt": "x"}', "a task 'ok' already"),
        ('{"id": "../a", "prompt": "x"}', "can't be an id"),
        ('{"id": "", "prompt": "x"}', "can't be an id"),
        ('{"id": "' + "a" * 181 + '", "prompt": "x"}', "can't be an id"),
        ('{"id": "a", "prompt": "x", "files": {"../b": ""}}', "no path inside the workspace"),
        ('{"id": "a", "prompt": "x", "files": {"/b": ""}}', "no path inside the workspace"),
        ('{"id": "a", "prompt": "x", "files": {"": ""}}', "no path inside the workspace"),
        ('{"id": "a", "prompt": "a\\u0000b"}', "NUL"),
        ("[1]", "Expected `object`"),
        ("{'id': 'a'}", "malformed"),
    ],
)
def test_a_line_with_a_mistake_is_refused_by_its_number(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "ok", "prompt": "x"}\n' + line + "\n")

    with pytest.raises(ConfigError) as refused:
        read_tasks(file)

    assert says in str(refused.value)
    assert "tasks.jsonl:2:" in str(refused.value)


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").touch()

    with pytest.raises(ConfigError, match="holds no task"):
        read_tasks(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="No such file"):
        read_tasks(tmp_path / "nowhere.jsonl")
