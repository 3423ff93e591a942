"""Secrets of a start: told from other settings, and the files that they travel in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from remote.core import secret_values
from remote.core.fields import Fields, Problems
from remote.core.secret_values import Secrets, SecretSource
from remote.core.shell import is_secret, masked_setting
from remote.errors import ConfigError


def test_a_mapping_with_one_known_key_says_where_a_secret_is() -> None:
    problems = Problems()
    section = Fields(
        "env",
        {
            "A": {"env": "HF_TOKEN"},
            "B": {"file": "~/.t"},
            "C": {"command": "pass show"},
            "D": "d",
        },
        problems,
    )
    assert secret_values.read_sources(section) == {
        "A": SecretSource("env", "HF_TOKEN"),
        "B": SecretSource("file", "~/.t"),
        "C": SecretSource("command", "pass show"),
    }
    assert section.variables() == {"D": "d"}
    problems.raise_any("nothing")


def test_a_source_that_says_nothing_is_a_problem() -> None:
    problems = Problems()
    secret_values.read_sources(Fields("env", {"A": {"env": ""}, "B": {"file": 3}}, problems))
    with pytest.raises(ConfigError) as wrong:
        problems.raise_any("the settings")
    assert [line.split(":")[0] for line in wrong.value.evidence] == ["env.A.env", "env.B.file"]


ARGV = ["--tp-size", "2", "--api-key", "k3y", "--cuda-graph-bs", "1", "2", "--enable-metrics"]


def test_secret_flags_go_into_the_file_and_the_rest_stays_in_order() -> None:
    words, secrets = secret_values.divided(ARGV, is_secret, by_file=True)
    assert words == ["--tp-size", "2", "--cuda-graph-bs", "1", "2", "--enable-metrics"]
    assert dict(secrets.flags) == {"api-key": "k3y"} and not secrets.words


@pytest.mark.parametrize(
    ("argv", "by_file"),
    [
        (["--api-key", "k3y"], False),
        (["--api-key=-dash-first"], True),
        (["--api-key", "schlüssel"], True),
    ],
)
def test_what_the_file_cannot_carry_is_put_on_the_command_line_by_a_variable(
    argv: list[str], by_file: bool
) -> None:
    words, secrets = secret_values.divided(argv, is_secret, by_file=by_file)
    assert words == ["--api-key", None] and not secrets.flags
    value = argv[-1].partition("=")[2] or argv[-1]
    assert dict(secrets.words) == {"SGLANG_REMOTE_SECRET_1": value}


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(TEXT)
def test_a_variable_reaches_bash_byte_by_byte(value: str) -> None:
    content = Secrets(environment={"HF_TOKEN": value}).files()["secrets.env"]
    done = subprocess.run(
        ["bash", "-c", '. /dev/stdin; printf %s "$HF_TOKEN"'],
        input=content,
        capture_output=True,
        check=True,
    )
    assert done.stdout == value.encode()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1))
def test_a_flag_reaches_a_reader_of_yaml_as_it_is(value: str) -> None:
    content = Secrets(flags={"api-key": value}).files()["secrets.yaml"]
    assert yaml.safe_load(content) == {"api-key": value}


@given(TEXT, TEXT)
def test_whoever_reads_the_files_learns_every_value(variable: str, flag: str) -> None:
    files = Secrets(environment={"A": variable}, flags={"api-key": flag}).files()
    texts = {name: content.decode() for name, content in files.items()}
    assert secret_values.values_in(texts) == [variable, flag]


def test_damaged_files_give_what_can_be_read() -> None:
    assert secret_values.values_in({"secrets.env": "export A='x", "secrets.yaml": "{"}) == []
    assert secret_values.values_in({"secrets.yaml": '{"api-key": "k"}'}) == ["k"]


def test_no_secrets_need_no_file() -> None:
    assert Secrets().files() == {}


def test_secrets_do_not_show_themselves() -> None:
    assert "s3cret" not in repr(Secrets({"A": "s3cret"}, {"b": "s3cret"}, {"C": "s3cret"}))


def test_a_template_that_reads_no_secrets_is_refused_where_there_are_some() -> None:
    secret_values.refuse_template("exec python", Secrets(flags={"api-key": "k"}))
    with pytest.raises(ConfigError, match=r"secrets\.env"):
        secret_values.refuse_template("exec python", Secrets({"HF_TOKEN": "x"}))


def test_a_word_that_says_where_a_secret_is_can_be_kept() -> None:
    word = "env.HF_TOKEN={env: HF_TOKEN}"
    assert masked_setting(word) == word
    assert masked_setting("env.HF_TOKEN=hf_x") == "env.HF_TOKEN=***"


def test_the_files_are_named_as_the_host_expects_them() -> None:
    from remote.payload import runs

    assert runs.SECRETS == (secret_values.ENV_FILE, secret_values.CONFIG_FILE)
    assert Path(secret_values.CONFIG_FILE).suffix == ".yaml"  # or SGLang refuses it
