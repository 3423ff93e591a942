"""Profiles: layers and where each value came from, refusals, and the five that are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from remote import config, profile
from remote.core.defaults import DEFAULTS
from remote.core.layers import Sourced
from remote.errors import ConfigError

BUILT_IN = (config.TEMPLATES,)
SHIPPED = ["baseline", "expert-parallel", "mscclpp", "piecewise", "single-batch-overlap"]


def host(**changes: object) -> config.HostSettings:
    entry: dict[str, object] = {
        "address": "root@gpu-box",
        "venv": "/root/ml-env",
        "model": "GLM-5-NVFP4",
        "port": 30000,
        **changes,
    }
    return config.host_from("gpu", entry, config.load(DEFAULTS, Path()).bench)


@pytest.fixture
def write(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    return tmp_path


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / "profiles" / f"{name}.yaml").write_text(text, encoding="utf-8")


def wants(loaded: profile.Profile) -> dict[str, object]:
    return {name: want.value for name, want in loaded.want.items()}


def refused(folder: Path, name: str, *sets: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        profile.load(name, (folder,), host(), sets)
    return caught.value


def test_the_shipped_profiles() -> None:
    assert profile.names(BUILT_IN) == SHIPPED
    baseline = profile.load("baseline", BUILT_IN, host())
    assert baseline.want["tensor_parallel"] == Sourced(8, "profile baseline")
    assert baseline.want["piecewise_cuda_graph"] == Sourced(False, "profile baseline")
    assert baseline.ready_timeout_s == 2400
    assert baseline.patches == ()


@pytest.mark.parametrize(
    ("name", "intent", "value"),
    [
        ("piecewise", "piecewise_cuda_graph", True),
        ("mscclpp", "mscclpp", True),
        ("single-batch-overlap", "single_batch_overlap", True),
        ("expert-parallel", "expert_parallel", 8),
    ],
)
def test_each_variant_is_the_baseline_and_one_thing_more(
    name: str, intent: str, value: object
) -> None:
    baseline = profile.load("baseline", BUILT_IN, host())
    variant = profile.load(name, BUILT_IN, host())
    assert variant.chain == ("baseline", name)
    assert wants(variant) == {**wants(baseline), intent: value}
    assert (variant.flags, variant.env) == (baseline.flags, baseline.env)
    assert variant.ready_timeout_s == 2400
    assert variant.patches == (("flashinfer/fp4-opaque",) if name == "piecewise" else ())


def test_layers_go_over_one_another_and_say_where_a_value_is_from(write: Path) -> None:
    put(
        write,
        base="want: {tensor_parallel: 8, quantization: fp8, metrics: on}\nenv: {A: '1', B: '1'}",
        child="extends: base\nwant: {tensor_parallel: 4, quantization: off}\nenv: {B: null}",
    )
    gpu = host(
        want={"attention_backend": "triton"},
        flags={"mem-fraction-static": 0.8},
        env={"A": "2"},
        profiles={"child": {"want": {"attention_backend": "fa3"}, "env": {"C": 3}}},
    )
    loaded = profile.load("child", (write,), gpu, ["metrics=null", "env.A=on", "max-queued=9"])
    assert loaded.want == {
        "tensor_parallel": Sourced(4, "profile child"),
        "quantization": Sourced(False, "profile child"),
        "attention_backend": Sourced("fa3", "host gpu, profile child"),
    }
    assert loaded.flags == {
        "mem-fraction-static": Sourced("0.8", "host gpu"),
        "max-queued": Sourced("9", "--set"),
    }
    assert loaded.env == {
        "A": Sourced("on", "--set"),
        "C": Sourced("3", "host gpu, profile child"),
    }


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "true", "false"])
def test_yaml_1_1_switches_are_switches_however_they_are_written(write: Path, word: str) -> None:
    state = word in ("on", "yes", "true")
    put(write, bare=f"want: {{mscclpp: {word}}}", quoted=f"want: {{mscclpp: '{word}'}}")
    for name in ("bare", "quoted"):
        assert wants(profile.load(name, (write,), host())) == {"mscclpp": state}
    assert wants(profile.load("bare", (write,), host(), [f"mscclpp={word}"])) == {"mscclpp": state}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("want: {quantization: on}", "want.quantization: wanted a name, or off, found true"),
        ("wants: {}", "wants: unknown key; did you mean want?"),
        ("want: {mscclp: on}", "want.mscclp: unknown intent; did you mean mscclpp?"),
        ("want: [a]", "want: wanted a mapping, found a list"),
        ("patches: [cuda-version]", "patches: wanted dist/name, found text 'cuda-version'"),
        (
            "ready_timeout_s: soon",
            "ready_timeout_s: wanted a number of seconds above 0, found text 'soon'",
        ),
        (
            "flags: {port: 1}",
            "flags.port: follows from the host's entry: set hosts.NAME.port",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said_by_its_path(write: Path, text: str, line: str) -> None:
    put(write, mine=text)
    error = refused(write, "mine")
    assert list(error.evidence) == [line]
    assert str(write / "profiles" / "mine.yaml") in str(error.hint)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("mscclpp", "--set mscclpp: wanted key=value"),
        (
            "piecewise_cuda_grap=on",
            "--set piecewise_cuda_grap: unknown intent; did you mean piecewise_cuda_graph?",
        ),
        ("wnat.mscclpp=on", "--set wnat.mscclpp: unknown section; did you mean want?"),
        ("want.mscclpp=perhaps", "--set want.mscclpp: wanted on or off, found text 'perhaps'"),
        ("env.A B=1", "--set env.A B: 'A B' is not a name for an environment variable"),
    ],
)
def test_a_wrong_set_is_refused(write: Path, word: str, line: str) -> None:
    put(write, mine="")
    assert list(refused(write, "mine", word).evidence) == [line]


@pytest.mark.parametrize(
    "text",
    [
        "010",
        "0.90",
        "a b # c",
        "k: v",
        "$(touch x)",
        "a'b\"c",
        "`x`;",
        "*x",
        "!!python/name:os.system",
        "é",
    ],
)
def test_a_value_of_set_is_data(write: Path, text: str) -> None:
    put(write, mine="")
    loaded = profile.load("mine", (write,), host(), [f"served-model-name={text}", f"env.X={text}"])
    assert loaded.flags["served-model-name"].value == text
    assert loaded.environment == {"X": text}


def test_set_takes_lists_and_takes_values_away(write: Path) -> None:
    put(write, mine="flags: {sleep-on-idle: true, a: 1}")
    loaded = profile.load("mine", (write,), host(), ["cuda-graph-bs=[1, 2]", "a=null"])
    assert {name: flag.value for name, flag in loaded.flags.items()} == {
        "sleep-on-idle": True,
        "cuda-graph-bs": ("1", "2"),
    }


def test_a_mapping_is_json_for_the_server(write: Path) -> None:
    put(write, mine="flags: {json-model-override-args: {num_hidden_layers: 2}}")
    loaded = profile.load("mine", (write,), host())
    assert loaded.flags["json-model-override-args"].value == '{"num_hidden_layers": 2}'


def test_an_unknown_profile_names_the_nearest_and_lists_them() -> None:
    with pytest.raises(ConfigError, match="'piecewize'; did you mean piecewise") as caught:
        profile.load("piecewize", BUILT_IN, host())
    assert list(caught.value.evidence) == SHIPPED


def test_a_name_is_no_path(write: Path) -> None:
    (write / "secret.yaml").write_text("want: {mscclpp: on}", encoding="utf-8")
    assert "no profile '../secret'" in refused(write, "../secret").message


def test_a_circle_of_extends_is_named(write: Path) -> None:
    put(write, a="extends: b", b="extends: c", c="extends: b")
    assert refused(write, "a").message == ("profiles extend one another in a circle: a → b → c → b")
    put(write, alone="extends: alone")
    assert "circle: alone → alone" in refused(write, "alone").message


def test_ones_own_profile_goes_first_and_may_extend_the_one_it_hides(write: Path) -> None:
    put(write, baseline="extends: baseline\nwant: {tensor_parallel: 2}")
    loaded = profile.load("piecewise", (write, *BUILT_IN), host())
    assert loaded.chain == ("baseline", "baseline", "piecewise")
    assert loaded.want["tensor_parallel"].value == 2
    assert loaded.want["quantization"].value == "modelopt_fp4"


def test_broken_yaml_names_the_file_and_the_line(write: Path) -> None:
    put(write, mine="want:\n  mscclpp: [")
    error = refused(write, "mine")
    assert error.message == "can't read profile mine"
    assert any("line 2" in line for line in error.evidence)


def test_a_host_may_not_speak_of_a_profile_that_does_not_exist() -> None:
    overrides: Mapping[str, object] = {"piecwise": {"env": {"A": "1"}}}
    with pytest.raises(ConfigError, match=r"hosts\.gpu\.profiles\.piecwise: no such profile"):
        profile.load("baseline", BUILT_IN, host(profiles=overrides))
