"""Profiles are data, read strictly."""

from pathlib import Path

import pytest

from rolltape.errors import ConfigError
from rolltape.harness import builtin_profiles, find_profile, read_profile
from rolltape.harness.profile import fill

MINIMAL = """
name = "mine"
version = "1"
protocol = "openai_chat"
executable = "sh"
command = ["{executable}", "-c", "echo {prompt}"]
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_shipped_mini_swe_agent_profile_reads_and_its_configuration_is_there() -> None:
    profile = builtin_profiles()["mini-swe-agent"]

    assert profile.version == "2.4.6"
    assert "step_limit: 4" in profile.find_config("smollm2").read_text()
    assert profile.env["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"


def test_a_profile_of_the_users_own_is_a_file_or_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL)
    write(tmp_path, MINIMAL, "profile.toml")

    assert find_profile(str(file), {}).name == "mine"
    assert find_profile(str(tmp_path), {}).name == "mine"


def test_a_name_that_is_no_profile_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="there are: aider, claude-code, cline, codex, gemini-cli, mini-swe-agent"):
        find_profile("maxi", builtin_profiles())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (MINIMAL + 'colour = "red"\n', "unknown field `colour`"),
        (MINIMAL + "[calls]\nheader = 1\n", "unknown field `header`"),
        (MINIMAL.replace("{prompt}", "{promt}"), "unknown placeholder {promt}"),
        (MINIMAL.replace("{prompt}", "{prompt!r}"), "takes no format"),
        (MINIMAL.replace("{prompt}", "{prompt.__class__}"), "unknown placeholder"),
        (MINIMAL.replace("{prompt}", "{"), "write {{ and }} for braces"),
        (MINIMAL.replace('["{executable}", "-c", "echo {prompt}"]', "[]"), "length >= 1"),
        (MINIMAL + '[[calls.kinds]]\nkind = "title"\nwhen = {body = "x"}\n', "header:NAME"),
        (MINIMAL + '[report]\nfile = "{out}/r"\nstatus = ["s"]\n[report.endings]\nfinished = "("\n', "unterminated"),
        ("name = ", "is no harness profile"),
    ],
)
def test_a_profile_with_a_mistake_is_refused_when_it_is_read(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_profile(write(tmp_path, text))
    assert says in str(refused.value)


def test_a_missing_file_and_a_missing_configuration_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_profile(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="shipped with it: smollm2"):
        builtin_profiles()["mini-swe-agent"].find_config("none.yaml")


def test_braces_are_written_doubled_and_values_are_never_read_as_templates() -> None:
    assert fill('{{"a": "{prompt}"}}', {"prompt": "{api_key}"}) == '{"a": "{api_key}"}'
