"""Settings: the four lines, the refusals with their paths, and Invoke's own merging."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from invoke.config import Config

from remote import config
from remote.core.defaults import DEFAULTS
from remote.errors import ConfigError

FOUR_LINES: dict[str, object] = {
    "address": "root@gpu-box",
    "venv": "/root/ml-env",
    "model": "zai-org/GLM-5-NVFP4",
    "port": 30000,
}


def load(tmp_path: Path, **top: object) -> config.Settings:
    return config.load({**DEFAULTS, **top}, tmp_path)


def gpu(**changes: object) -> dict[str, object]:
    return {"gpu": {**FOUR_LINES, **changes}}


def wrong(tmp_path: Path, **top: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **top)
    assert caught.value.exit_code == 2
    return list(caught.value.evidence)


def test_four_lines_are_a_host(tmp_path: Path) -> None:
    host = load(tmp_path, hosts=gpu()).hosts["gpu"]
    assert (host.address.user, host.address.host, host.address.port) == ("root", "gpu-box", None)
    assert (host.venv, host.model, host.port) == ("/root/ml-env", "zai-org/GLM-5-NVFP4", 30000)
    assert (host.cuda_home, host.state) == ("/usr/local/cuda", "~/.sglang-remote")
    assert host.bind == "127.0.0.1"
    assert host.bench.concurrency == (1, 10, 256, 1024)


@pytest.mark.parametrize("secrets", [["LICENSE", "cluster-pin"], "LICENSE, cluster-pin"])
def test_names_of_secrets_reach_every_host(tmp_path: Path, secrets: object) -> None:
    settings = load(tmp_path, hosts=gpu(), secrets=secrets)
    assert settings.secrets == settings.hosts["gpu"].secrets == ("LICENSE", "cluster-pin")
    assert load(tmp_path).secrets == ()


def test_secrets_are_names(tmp_path: Path) -> None:
    (problem,) = wrong(tmp_path, secrets={"LICENSE": "value"})
    assert problem.startswith("secrets: ")


def test_nothing_configured_means_the_embedded_host(tmp_path: Path) -> None:
    assert load(tmp_path).pick() == "sandbox"


def test_pick_goes_by_name_then_setting_then_the_only_one(tmp_path: Path) -> None:
    two = {**gpu(), "other": FOUR_LINES}
    assert load(tmp_path, hosts=gpu()).pick() == "gpu"
    assert load(tmp_path, hosts=gpu()).pick("sandbox") == "sandbox"
    assert load(tmp_path, hosts=two, host="other").pick() == "other"
    assert load(tmp_path, hosts=two, host="other").pick("gpu") == "gpu"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, hosts=two).pick()
    assert list(caught.value.evidence) == ["gpu: root@gpu-box", "other: root@gpu-box"]


def test_unknown_host_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'gpv' in the settings; did you mean gpu\?"):
        load(tmp_path, hosts=gpu()).pick("gpv")


def test_all_problems_come_at_once_with_their_paths(tmp_path: Path) -> None:
    host = {"adress": "root@x", "venv": "ml-env", "model": "m", "port": "many", "prot": 1}
    assert wrong(tmp_path, hosts={"gpu": host}, sssh={}, ssh={"keepalive_s": -1}) == [
        "hosts.gpu.address: missing",
        "hosts.gpu.venv: wanted an absolute path on the host, found text 'ml-env'",
        "hosts.gpu.port: wanted a whole number from 1 to 65535, found text 'many'",
        "hosts.gpu.adress: unknown key; did you mean address?",
        "hosts.gpu.prot: unknown key; did you mean port?",
        "ssh.keepalive_s: wanted a number of seconds above 0, found the number -1",
        "sssh: unknown key; did you mean ssh?",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"port": True}, "hosts.gpu.port: wanted a whole number from 1 to 65535, found true"),
        ({"port": 0}, "hosts.gpu.port: wanted a whole number from 1 to 65535, found the number 0"),
        ({"venv": ["/a"]}, "hosts.gpu.venv: wanted text, found a list"),
        ({"venv": "/a:b"}, "hosts.gpu.venv: holds a colon, which would split it on PATH"),
        (
            {"model": "a\0b"},
            "hosts.gpu.model: holds a NUL character, which no path or command line can carry",
        ),
        (
            {"want": {"piecewise_cuda_grahp": True}},
            "hosts.gpu.want.piecewise_cuda_grahp: unknown intent; "
            "did you mean piecewise_cuda_graph?",
        ),
        (
            {"want": {"tensor_parallel": "eight"}},
            "hosts.gpu.want.tensor_parallel: wanted a whole number above 0, or off, "
            "found text 'eight'",
        ),
        (
            {"unavailable": {"mscclp": "no NVLink"}},
            "hosts.gpu.unavailable.mscclp: unknown intent; did you mean mscclpp?",
        ),
        (
            {"env": {"FAST": True}},
            "hosts.gpu.env.FAST: wanted text, found true: put it in quotes",
        ),
        (
            {"env": {"A B": "x"}},
            "hosts.gpu.env.A B: 'A B' is not a name for an environment variable",
        ),
        (
            {"flags": {"--tp-size": 8}},
            "hosts.gpu.flags.--tp-size: write it without the dashes: tp-size",
        ),
        (
            {"flags": {"port": 8}},
            "hosts.gpu.flags.port: follows from the host's entry: set hosts.NAME.port",
        ),
        (
            {"profiles": {"baseline": {"wants": {}}}},
            "hosts.gpu.profiles.baseline.wants: unknown key; did you mean want?",
        ),
        (
            {"bench": {"concurrency": "1,ten"}},
            "hosts.gpu.bench.concurrency: wanted levels as \"1,10,256\", found text '1,ten'",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(
    tmp_path: Path, changes: Mapping[str, object], line: str
) -> None:
    assert wrong(tmp_path, hosts=gpu(**changes)) == [line]


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("root@10.0.0.1:2222", "root", "10.0.0.1", 2222),
        ("gpu-box", None, "gpu-box", None),
        ("root@[fe80::1]:22", "root", "fe80::1", 22),
        ("fe80::1", None, "fe80::1", None),
    ],
)
def test_addresses(
    tmp_path: Path, text: str, user: str | None, host: str, port: int | None
) -> None:
    address = load(tmp_path, hosts=gpu(address=text)).hosts["gpu"].address
    assert address == config.Address(host=host, user=user, port=port)


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=x", "root@-x", "@host", "a b", "host:0", "host:x", "h\nx", "host:"]
)
def test_what_ssh_would_misread_is_no_address(tmp_path: Path, text: str) -> None:
    (line,) = wrong(tmp_path, hosts=gpu(address=text))
    assert line.startswith("hosts.gpu.address: wanted [user@]host-or-alias[:port], found text")


def test_the_sandbox_name_is_reserved(tmp_path: Path) -> None:
    (line,) = wrong(tmp_path, hosts={"sandbox": FOUR_LINES})
    assert line.startswith("hosts.sandbox: is the embedded host's own name")


def test_a_missing_templates_folder_is_said(tmp_path: Path) -> None:
    (line,) = wrong(tmp_path, templates="mine")
    assert line == f"templates: no such folder: {tmp_path / 'mine'}"
    (tmp_path / "mine").mkdir()
    folders = load(tmp_path, templates="mine").template_folders
    assert folders == (tmp_path / "mine", config.TEMPLATES)


def test_local_paths_start_from_the_project(tmp_path: Path) -> None:
    settings = load(tmp_path, hosts=gpu(identity_file="keys/id", ssh_config="none"), runs="mine")
    assert settings.hosts["gpu"].identity_file == tmp_path / "keys" / "id"
    assert settings.hosts["gpu"].ssh_config == "none"
    assert (settings.runs, settings.sandbox_folder) == (tmp_path / "mine", tmp_path / ".sandbox")


def test_hostile_text_stays_data(tmp_path: Path) -> None:
    hostile = "a b'c\"d;$(touch x)`y`\nné"
    host = load(tmp_path, hosts=gpu(model=hostile, env={"X": hostile})).hosts["gpu"]
    assert host.model == hostile
    assert host.overrides.env == {"X": hostile}


def test_host_from_checks_an_entry_the_same_way(tmp_path: Path) -> None:
    bench = load(tmp_path).bench
    assert config.host_from("sandbox", FOUR_LINES, bench).name == "sandbox"
    with pytest.raises(ConfigError) as caught:
        config.host_from("sandbox", {**FOUR_LINES, "cuda": "/x"}, bench)
    assert caught.value.evidence == ("hosts.sandbox.cuda: unknown key; did you mean cuda_home?",)


def merged(monkeypatch: pytest.MonkeyPatch, file: Mapping[str, object], **env: str) -> Any:
    """What Invoke itself makes of defaults, a project's file and the environment."""
    for name in [name for name in os.environ if name.startswith("INVOKE_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    merged = Config(lazy=True, defaults={**Config.global_defaults(), **DEFAULTS})
    merged.load_collection(dict(file))
    merged.load_shell_env()
    return merged


def test_the_environment_goes_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = config.load(
        merged(
            monkeypatch,
            {"hosts": gpu()},
            INVOKE_HOSTS_GPU_PORT="30001",
            INVOKE_HOST="gpu",
            INVOKE_BENCH_CONCURRENCY="1,2",
            INVOKE_SSH_CONNECT_TIMEOUT_S="2.5",
            INVOKE_SSH_ACCEPT_NEW_HOST_KEYS="false",
        ),
        tmp_path,
    )
    assert settings.hosts["gpu"].port == 30001
    assert settings.pick() == "gpu"
    assert settings.hosts["gpu"].bench.concurrency == (1, 2)
    assert settings.ssh.connect_timeout_s == 2.5
    assert settings.ssh.accept_new_host_keys is False


def test_a_hosts_setting_that_the_file_lacks_can_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = {key: value for key, value in FOUR_LINES.items() if key != "port"}
    settings = config.load(
        merged(
            monkeypatch,
            {"hosts": {"gpu": entry}},
            INVOKE_HOSTS_GPU_PORT="30001",
            INVOKE_HOSTS_GPU_KNOWN_HOSTS="/keys/known",
            INVOKE_HOSTS_GPU_BIND="0.0.0.0",
        ),
        tmp_path,
    )
    host = settings.hosts["gpu"]
    assert (host.port, host.known_hosts, host.bind) == (30001, Path("/keys/known"), "0.0.0.0")


@pytest.mark.parametrize("name", ["GPU_NOSUCH", "GPU_ENV_X", "OTHER_PORT", "GPU_PORTS"])
def test_a_variable_that_names_no_setting_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    made = merged(monkeypatch, {"hosts": gpu()}, **{f"INVOKE_HOSTS_{name}": "1"})
    with pytest.raises(ConfigError) as refused:
        config.load(made, tmp_path)
    assert f"INVOKE_HOSTS_{name}: names no setting" in refused.value.evidence[0]


@pytest.mark.parametrize("bind", ["127.0.0.1 --api-key x", "-x", "999.1.1.1", "a b", "http://x"])
def test_an_address_to_listen_on_is_one(tmp_path: Path, bind: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, hosts=gpu(bind=bind))
    assert "hosts.gpu.bind" in refused.value.evidence[0]


def test_invokes_own_keys_are_passed_over() -> None:
    assert set(Config.global_defaults()) <= config.INVOKE_KEYS


def test_settings_import_none_of_the_heavy_libraries() -> None:
    heavy = "{'yaml', 'jinja2', 'fabric', 'paramiko', 'rich', 'asyncssh'}"
    code = f"import sys, remote.config; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
