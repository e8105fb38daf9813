"""A run with a typo must not look configured."""

import re

import pytest

from rolltape import registry
from rolltape.config import read_config
from rolltape.errors import ConfigError


def written(tmp_path, text):
    path = tmp_path / "rolltape.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read_and_flags_win(tmp_path):
    path = written(tmp_path, "engine: {kind: scripted, model: a}\nport: 1\nsampling_overrides: {temperature: 1.0}\n")
    config = read_config(path, port=2, engine_model="b", host=None)
    assert (config.port, config.engine.kind, config.engine.model, config.host) == (2, "scripted", "b", "127.0.0.1")
    assert config.sampling_overrides == {"temperature": 1.0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 1", "did you mean 'port'"),
        ("engine: {knd: x}", "did you mean 'kind'"),
        ("limits: {max_body: 1}", "did you mean 'max_body_bytes'"),
        ("sampling_overrides: {temprature: 1}", "did you mean 'temperature'"),
        ("port: many", "Expected `int`"),
        ("auth: maybe", "auth"),
        ("- a\n- b", "mapping"),
        ("a: [", "not YAML"),
        ("port: 70000", "70000"),
        ("host: 0.0.0.0\nauth: open", "loopback|0.0.0.0"),
        ("call_policy: {kinds: {compation: drop}}", "the policy names a kind .compation."),
    ],
)
def test_a_mistake_is_an_error_that_says_where(tmp_path, text, told):
    with pytest.raises(ConfigError) as refused:
        read_config(written(tmp_path, text))
    assert re.search(told, str(refused.value))


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(tmp_path / "none.yaml")


def test_keys_are_demanded_off_loopback():
    assert read_config(None).auth_mode == "open"
    assert read_config(None, host="0.0.0.0").auth_mode == "keys"


def test_the_control_token_is_never_shown():
    assert "s3cret" not in repr(read_config(None, control_token="s3cret"))


def test_an_unknown_extension_names_what_there_is():
    with pytest.raises(ConfigError, match=r"there are: .*scripted") as refused:
        registry.load("engine", "scriptd")
    assert "did you mean 'scripted'" in refused.value.hint


def test_options_that_an_engine_does_not_take_are_an_error():
    with pytest.raises(ConfigError, match="nonsense"):
        registry.engine("scripted", model=None, url=None, options={"nonsense": 1})


@pytest.mark.parametrize(
    "text", ["engine: scripted", "engine: [a]", "limits: {max_body_bytes: -1}", "limits: {durable_seconds: 0}"]
)
def test_a_value_of_the_wrong_shape_is_an_error_that_names_its_option(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=text.partition(":")[0]):
        read_config(file)
