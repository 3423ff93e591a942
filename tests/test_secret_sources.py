"""A secret read where it is kept here; one that isn't there is said without showing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote import secret_sources
from remote.core.secret_values import SecretSource
from remote.errors import ConfigError

WHERE = "env.HF_TOKEN (host gpu)"


def test_each_kind_gives_the_secret_without_its_last_newline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "from the environment")
    kept = tmp_path / "token"
    kept.write_text("from a file\r\n")
    printed = f"cat {kept}"
    assert secret_sources.read(SecretSource("env", "MY_TOKEN"), WHERE) == "from the environment"
    assert secret_sources.read(SecretSource("file", str(kept)), WHERE) == "from a file"
    assert secret_sources.read(SecretSource("command", printed), WHERE) == "from a file"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (SecretSource("env", "NOT_SET_ANYWHERE"), "no NOT_SET_ANYWHERE"),
        (SecretSource("file", "/nowhere/token"), "/nowhere/token can't be read: No such file"),
        (SecretSource("command", "false"), "'false' ended with 1"),
        (SecretSource("command", "/nowhere/pass"), "can't be run"),
        (SecretSource("command", "echo 'open"), "can't be run"),
        (SecretSource("command", "true"), "is empty"),
    ],
)
def test_a_secret_that_is_not_there_is_said_with_its_setting(
    source: SecretSource, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        secret_sources.read(source, WHERE)
    assert refusal.value.message.startswith(WHERE)


def test_a_command_is_run_without_a_shell() -> None:
    source = SecretSource("command", "echo $HOME; echo two")
    assert secret_sources.read(source, WHERE) == "$HOME; echo two"


def test_what_a_failed_command_printed_is_not_repeated(tmp_path: Path) -> None:
    script = tmp_path / "pass"
    script.write_text("#!/bin/sh\necho s3cret\nexit 3\n")
    script.chmod(0o700)
    with pytest.raises(ConfigError) as refusal:
        secret_sources.read(SecretSource("command", str(script)), WHERE)
    assert "s3cret" not in str(refusal.value.as_dict())
