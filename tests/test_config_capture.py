"""The capture block: a run that captures nothing must not look configured, and one that is configured captures."""

import re

import pytest
import rich

from rolltape.config import EngineConfig, read_config
from rolltape.errors import ConfigError

ON = "token_id_capture: {enabled: true}\n"


def written(tmp_path, text):
    path = tmp_path / "rolltape.yaml"
    path.write_text(text)
    return path


def read(tmp_path, text, **flags):
    return read_config(written(tmp_path, text), **flags)


def refusal(tmp_path, text):
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    return str(refused.value)


WHOLE = """
cluster_shard: 3
token_id_capture:
  enabled: true
  dir: /tmp/captures
  all_agents: false
  sink: my_pkg.sinks:MySink
  sink_kwargs: {endpoint: "${oc.env:DATA_PLANE}", shard: "${oc.select:cluster_shard,0}"}
  lineage_store: my_pkg.sinks:MyLineage
  lineage_store_kwargs: {of: "${token_id_capture.sink_kwargs.shard}"}
  rebuild_response: false
agents:
  claude_code: {harness: claude-code, token_id_capture: true}
  native: {}
sampling_overrides: {temperature: 1.0, top_p: 1.0}
"""


def test_the_whole_block_is_read_and_its_interpolations_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA_PLANE", "tcp://plane:1")
    config = read(tmp_path, WHOLE)
    block = config.token_id_capture
    assert block.sink_kwargs == {"endpoint": "tcp://plane:1", "shard": 3}
    assert block.lineage_store_kwargs == {"of": 3}
    assert (block.enabled, block.all_agents, block.rebuild_response) == (True, False, False)
    assert config.agents["claude_code"].token_id_capture
    assert not config.agents["native"].token_id_capture


def test_the_seeds_own_nesting_means_the_same(tmp_path):
    text = """
env: {nemo_gym: {token_id_capture: {enabled: true, dir: /tmp/captures}}}
responses_api_agents: {claude_code_agent: {token_id_capture: true}}
"""
    config = read(tmp_path, text)
    assert (config.token_id_capture.enabled, config.dir) == (True, "/tmp/captures")
    assert config.agents["claude_code_agent"].token_id_capture


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("token_id_capture: {enabeld: true}", "token_id_capture.enabeld.*did you mean 'enabled'"),
        ("token_id_capture: {sink_kwarg: {}}", "did you mean 'sink_kwargs'"),
        ("token_id_captur: {enabled: true}", "did you mean 'token_id_capture'"),
        ("agents: {a: {token_id_captrue: true}}", "agents.a.token_id_captrue.*did you mean 'token_id_capture'"),
        ("responses_api_agents: {a: {token_id_captrue: true}}", "did you mean 'token_id_capture'"),
        ("env: {nemo_gym: {token_id_captur: {}}}", "env.nemo_gym.token_id_captur.*did you mean 'token_id_capture'"),
        ("env: {nemo_gmy: {}}", "env.nemo_gmy.*did you mean 'nemo_gym'"),
        ("env: 1", "env must be a mapping"),
        ("responses_api_agents: 1", "responses_api_agents must be a mapping"),
        ("token_id_capture: yes please", "token_id_capture"),
        ("token_id_capture: {enabled: perhaps}", "Expected `bool`"),
        ("token_id_capture: {dir: captures}", "must be absolute, not 'captures'"),
        ("token_id_capture: {enabled: true, sink_kwargs: {a: 1}}", "sink_kwargs is there and no sink"),
        (ON + "env: {nemo_gym: {token_id_capture: {enabled: true}}}", "token_id_capture is given twice"),
        ("agents: {a: {}}\nresponses_api_agents: {a: {}}", "agent a is given twice"),
        ("token_id_capture: {enabled: true, dir: '${oc.env:NOT_THERE_AT_ALL}'}", "token_id_capture.dir.*NOT_THERE"),
        ("dir: ${oc.env", "dir"),
        ("dir: ${nothing_here}", "nothing_here"),
        ("cluster_shrad: 3\ndir: /tmp/${oc.select:cluster_shard,0}", "unknown option cluster_shrad"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(tmp_path, text, told):
    assert re.search(told, refusal(tmp_path, text), re.DOTALL)


def test_a_default_stands_in_for_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.delenv("PORT_OF_MINE", raising=False)
    assert read(tmp_path, "port: ${oc.env:PORT_OF_MINE,0}\ndir: /tmp/${oc.select:shard,7}").port == 0
    monkeypatch.setenv("PORT_OF_MINE", "8123")
    assert read(tmp_path, "port: ${oc.env:PORT_OF_MINE,0}").port == 8123


def test_while_capture_is_off_what_only_a_training_run_has_may_be_missing(tmp_path):
    text = """
token_id_capture:
  enabled: false
  dir: ${oc.env:NOT_THERE_AT_ALL}
  sink: a.b:C
  sink_kwargs: {url: "${oc.env:NOR_THIS}"}
"""
    assert not read(tmp_path, text).capturing


def test_capture_can_be_switched_from_the_environment(tmp_path, monkeypatch):
    text = "token_id_capture: {enabled: '${oc.env:CAPTURE,false}', dir: '/tmp/${oc.env:RUN_ID}'}"
    assert not read(tmp_path, text).capturing
    monkeypatch.setenv("CAPTURE", "true")
    assert "RUN_ID" in refusal(tmp_path, text)
    monkeypatch.setenv("RUN_ID", "r7")
    assert (read(tmp_path, text).capturing, read(tmp_path, text).dir) == (True, "/tmp/r7")


def test_the_blocks_directory_takes_the_place_of_the_other_and_a_flag_wins_over_both(tmp_path):
    text = "dir: mine\ntoken_id_capture: {enabled: true, dir: /tmp/captures}"
    assert read(tmp_path, text).dir == "/tmp/captures"
    assert read(tmp_path, text, dir="/tmp/flag").dir == "/tmp/flag"


# --- what looks configured and is not


@pytest.mark.parametrize("opted", ["agents: {claude_code: {token_id_capture: true}}", ""])
def test_an_agent_that_opted_in_while_capture_is_off_is_said_loudly(tmp_path, opted):
    text = f"token_id_capture: {{enabled: false, all_agents: {str(not opted).lower()}}}\n{opted}"
    (warning,) = read(tmp_path, text).warnings()
    assert warning.startswith("NOTHING IS CAPTURED")
    assert ("claude_code" if opted else "all_agents") in warning


def test_all_agents_does_not_enable_by_itself(tmp_path):
    assert not read(tmp_path, "token_id_capture: {all_agents: true}").capturing


def test_a_dir_beside_a_sink_is_a_warning_since_nothing_is_lost(tmp_path):
    config = read(tmp_path, "token_id_capture: {enabled: true, dir: /tmp/captures, sink: a.b:C}")
    assert "dir is not used: a.b:C" in config.warnings()[0]
    assert config.dir == "rolltape-data"


def test_a_lineage_store_beside_the_file_store_is_a_warning(tmp_path):
    (warning,) = read(tmp_path, "token_id_capture: {enabled: true, lineage_store: a.b:C}").warnings()
    assert "lineage_store is not used" in warning


def test_agents_of_whom_none_opted_in_are_a_warning(tmp_path):
    (warning,) = read(tmp_path, ON + "agents: {native: {}}").warnings()
    assert "no agent opted in" in warning
    assert not read(tmp_path, ON + "agents: {native: {token_id_capture: true}}").warnings()


@pytest.mark.parametrize("text", ["", ON, "token_id_capture: {enabled: false}"])
def test_a_plain_choice_needs_no_warning(tmp_path, text):
    assert read(tmp_path, text).warnings() == ()


# --- who is captured

AGENTS = ON + "agents: {willing: {harness: claude-code, token_id_capture: true}, native: {harness: codex}}"


@pytest.mark.parametrize(
    ("labels", "captured"),
    [
        ({"agent": "willing"}, True),
        ({"agent": "native"}, False),
        ({"agent": "unheard-of"}, False),
        ({"harness": "claude-code"}, True),
        ({"harness": "codex"}, False),
        ({"harness": "willing"}, True),
        ({"agent": "native", "harness": "claude-code"}, False),
        ({"task_id": "t"}, True),
        ({}, True),
    ],
)
def test_a_rollout_of_an_agent_that_did_not_opt_in_is_not_captured(tmp_path, labels, captured):
    assert read(tmp_path, AGENTS).opted_in(labels) is captured


def test_all_agents_opts_every_agent_in(tmp_path):
    text = AGENTS.replace("enabled: true", "enabled: true, all_agents: true")
    assert read(tmp_path, text).opted_in({"agent": "native"})


def test_without_the_block_every_rollout_is_captured():
    assert read_config(None).opted_in({"agent": "anyone"})


def test_while_capture_is_off_no_rollout_is(tmp_path):
    text = AGENTS.replace("enabled: true", "enabled: false")
    assert not read(tmp_path, text).opted_in({"agent": "willing"})


# --- secrets


def test_what_a_constructor_is_given_is_never_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DATA_PLANE", "tcp://user:s3cret@plane")
    config = read(tmp_path, WHOLE)
    rich.print(config, config.token_id_capture)
    shown = repr(config) + repr(config.token_id_capture) + capsys.readouterr().out
    assert "s3cret" not in shown
    assert "my_pkg.sinks:MySink" in shown
    assert "s3cret" not in repr(EngineConfig(options={"api_key": "s3cret"}))


def test_a_file_that_is_no_yaml_says_where_and_not_what_stands_there(tmp_path):
    told = refusal(tmp_path, "control_token: s3cret\nport: [")
    assert "line 2" in told
    assert "s3cret" not in told
