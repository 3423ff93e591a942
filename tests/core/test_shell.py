"""Words quoted once, and secrets never shown."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remote.core import shell
from remote.errors import ConfigError

SHELLS = [name for name in ("sh", "bash", "dash") if shutil.which(name)]
WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)


@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from(SHELLS))
@example(["a b", "'", '"', "; rm -rf /", "$(id)", "`id`", "\n", "~", "*", "-n", "", "!"], "sh")
def test_any_word_arrives_as_it_was(words: list[str], name: str) -> None:
    line = shell.join(["printf", "%s\\0", *words])
    done = subprocess.run([name, "-c", line], capture_output=True, check=True)
    assert done.stdout == b"".join(word.encode() + b"\0" for word in words)


@given(WORDS)
def test_an_assignment_carries_any_value(value: str) -> None:
    (word,) = shell.assignments({"NAME": value})
    done = subprocess.run(
        ["sh", "-c", f"{word}; export NAME; printenv NAME"], capture_output=True, check=True
    )
    assert done.stdout == value.encode() + b"\n"


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "A\n", "É", "A;B"])
def test_what_is_no_variable_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        shell.assignments({name: "x"})


def test_a_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match="NUL"):
        shell.join(["a\0b"])


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["--api-key", "s3", "--port", "1"], ["--api-key", "***", "--port", "1"]),
        (["--api-key=s3"], ["--api-key=***"]),
        (["--admin-api-key", "s3"], ["--admin-api-key", "***"]),
        (["--hf-token=s3", "x"], ["--hf-token=***", "x"]),
        (["--port", "api-key"], ["--port", "api-key"]),
        (["--api-key"], ["--api-key"]),
    ],
)
def test_secrets_of_a_command_are_masked(command: list[str], shown: list[str]) -> None:
    assert shell.masked(command) == shown


@pytest.mark.parametrize(
    "command",
    [
        ["--max-total-tokens", "8192"],
        ["--tokenizer-path", "/models/glm"],
        ["--cuda-graph-tc-compiler", "eager"],
        ["--tokenizer-mode=auto"],
        ["--skip-tokenizer-init", "--port", "1"],
        ["--num-reserved-decode-tokens", "512"],
        ["--kt-max-deferred-experts-per-token", "2"],
        ["--bucket-time-to-first-token", "0.1"],
    ],
)
def test_sglangs_own_flags_about_tokens_are_no_secrets(command: list[str]) -> None:
    assert shell.masked(command) == command


def test_secrets_of_an_environment_are_masked() -> None:
    env = {"HF_TOKEN": "s3", "AWS_SECRET_ACCESS_KEY": "s3", "NCCL_DEBUG": "INFO", "DB_PASSWD": ""}
    assert shell.masked_env(env) == {
        "HF_TOKEN": "***",
        "AWS_SECRET_ACCESS_KEY": "***",
        "NCCL_DEBUG": "INFO",
        "DB_PASSWD": "",
    }
