"""One deploy from profile to verdict, on a host without SSH."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hosts import LocalHost, Venv, host_settings

from remote import deploy, host_lock, planning, server
from remote.clock import SystemClock
from remote.config import TEMPLATES, HostSettings
from remote.core import environment
from remote.errors import ConfigError, Locked, PatchRefused, PreflightFailed, ToolError
from remote.planning import PatchChoice, Plan
from remote.server import Outcome, Verdict
from remote.store import LocalRun

SERVES = "serve(); ready(); wait()"
FILE = "flashinfer/jit/cpp_ext.py"
CODE = b"import torch\n\n\ndef get_cuda_version() -> Version:\n    return nvcc()\n"


class Deploys:
    """Plans and deploys against the host of a test."""

    def __init__(self, host: LocalHost, venv: Venv, folder: Path) -> None:
        self.host, self.venv, self.settings = host, venv, host.settings
        self.templates = folder / "templates"
        self.runs = folder / "runs"
        self.said: list[str] = []
        profiles = self.templates / "profiles"
        profiles.mkdir(parents=True)
        (profiles / "plain.yaml").write_text("description: nothing much\nready_timeout_s: 60\n")
        (profiles / "patched.yaml").write_text(
            "description: with a patch\nextends: plain\npatches:\n  - mine/first\n"
        )
        patch = self.templates / "patches" / "mine" / "first"
        patch.mkdir(parents=True)
        (patch / "a.diff").write_text(
            f"--- a/{FILE}\n+++ b/{FILE}\n@@ -4,2 +4,3 @@\n"
            " def get_cuda_version() -> Version:\n+    first()\n     return nvcc()\n"
        )
        (patch / "manifest.yaml").write_text(
            "summary: a test\ndistribution: flashinfer-python\nversions: '>=0.6'\n"
            "delivery: edit\nedits:\n  - a.diff\n"
        )

    def plan(self, profile: str = "plain", *sets: str) -> Plan:
        folders = [self.templates, TEMPLATES]
        wanted = planning.wish(self.settings, folders, profile, sets, PatchChoice())
        return planning.plan(
            self.host, self.settings, folders, wanted, SystemClock(), self.said.append
        )

    def carry_out(self, made: Plan) -> LocalRun:
        local = LocalRun(self.runs, made.run)
        deploy.carry_out(self.host, made, local, SystemClock(), self.said.append, 60.0)
        return local

    def deploy(
        self, play: str = SERVES, profile: str = "plain", *sets: str
    ) -> tuple[Plan, Verdict]:
        self.venv.play(play)
        made = self.plan(profile, *sets)
        local = self.carry_out(made)
        return made, self.follow(made.run, local)

    def follow(self, run: str, local: LocalRun) -> Verdict:
        return deploy.follow(
            self.host, self.settings, run, local, SystemClock(), 60.0, lambda event, state: None
        )

    def state(self, run: str) -> str:
        return server.look(self.host, self.settings, run).state


@pytest.fixture
def deploys(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Deploys:
    fake_venv.install("flashinfer-python", "0.6.3", {FILE: CODE})
    return Deploys(local_host, fake_venv, tmp_path)


def environment_of(deploys: Deploys, run: str) -> dict[str, str]:
    pid = server.look(deploys.host, deploys.settings, run).server_pid
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(word.decode().split("=", 1) for word in words if word)


def test_a_deploy_ends_ready_and_is_kept_on_both_sides(deploys: Deploys) -> None:
    made, verdict = deploys.deploy()
    assert verdict.outcome is Outcome.READY
    assert deploys.state(made.run) == "ready"
    local, there = deploys.runs / made.run, Path(deploys.settings.state) / "runs" / made.run
    assert (local / "launch.sh").read_bytes() == (there / "launch.sh").read_bytes()
    assert (local / "server.log").read_bytes() == (there / "server.log").read_bytes()
    assert json.loads((local / "verdict.json").read_text())["outcome"] == "ready"
    assert json.loads((there / "run.json").read_text())["profile"] == "plain"


def test_the_server_gets_the_fixed_environment_and_its_own_on_top(deploys: Deploys) -> None:
    value = "a b; $(touch pwned) 'q' \"d\""
    made, _ = deploys.deploy(SERVES, "plain", f"env.NCCL_NOTE={value}")
    env = environment_of(deploys, made.run)
    fixed = environment.fixed(deploys.settings.venv, deploys.settings.cuda_home)
    assert {name: env[name] for name in fixed} == fixed
    assert env["NCCL_NOTE"] == value
    assert not list(Path(deploys.settings.state).rglob("pwned"))


def test_a_plan_changes_nothing(deploys: Deploys) -> None:
    before = (deploys.venv.site / FILE).read_bytes()
    made = deploys.plan("patched")
    assert len(made.patches.steps) == 1 and "sglang.launch_server" in made.script
    assert (deploys.venv.site / FILE).read_bytes() == before
    assert {path.name for path in Path(deploys.settings.state).iterdir()} <= {"cache", "patches"}


def test_nothing_changed_is_seen_and_a_change_is_too(deploys: Deploys) -> None:
    made, _ = deploys.deploy()
    again = deploys.plan()
    assert again.unchanged is not None and again.unchanged.run == made.run
    for other in (
        deploys.plan("patched"),
        deploys.plan("plain", "env.NCCL_DEBUG=INFO"),
        deploys.plan("plain", "flags.mem-fraction-static=0.5"),
    ):
        assert other.unchanged is None and [run.run for run in other.stops] == [made.run]


def test_a_second_deploy_stops_the_first(deploys: Deploys) -> None:
    first, _ = deploys.deploy()
    second, verdict = deploys.deploy(SERVES, "plain", "env.NCCL_DEBUG=INFO")
    assert verdict.outcome is Outcome.READY
    assert deploys.state(first.run) == "stopped" and deploys.state(second.run) == "ready"


def test_a_crash_is_noted_on_the_host(deploys: Deploys) -> None:
    made, verdict = deploys.deploy("say('loading'); die()")
    assert verdict.outcome is Outcome.CRASHED and verdict.exit_status == 137
    assert deploys.state(made.run) == "crashed"
    assert deploys.plan().stops == ()


def test_what_is_left_of_a_crashed_server_is_cleared_away(deploys: Deploys) -> None:
    made, verdict = deploys.deploy("orphan(); say('[Errno 98] address already in use'); wait()")
    assert verdict.outcome is Outcome.CRASHED
    settings, clock = deploys.settings, SystemClock()
    done = deploy.clear_away(deploys.host, settings, made.run, clock, deploys.said.append)
    assert done is not None and done.processes >= 3
    assert deploy.clear_away(deploys.host, settings, made.run, clock, deploys.said.append) is None


def test_a_port_held_by_a_stranger_stops_the_deploy_and_names_it(deploys: Deploys) -> None:
    stranger = socket.create_server(("127.0.0.1", deploys.settings.port))
    with stranger, pytest.raises(PreflightFailed) as refusal:
        deploys.plan()
    assert refusal.value.exit_code == 14
    assert f"pid {os.getpid()}" in refusal.value.evidence[0]
    assert f"--pid {os.getpid()}" in str(refusal.value.hint)


def test_a_flag_that_the_installed_parser_does_not_know_stops_the_deploy(
    deploys: Deploys,
) -> None:
    with pytest.raises(PreflightFailed) as refusal:
        deploys.plan("plain", "flags.mem-fraction-statik=0.8")
    told = " ".join([refusal.value.message, *refusal.value.evidence, str(refusal.value.hint)])
    assert "mem-fraction-static" in told
    assert not (Path(deploys.settings.state) / "runs").exists()


def test_an_unknown_profile_is_refused_with_the_nearest(deploys: Deploys) -> None:
    with pytest.raises(ConfigError, match="piecewise"):
        deploys.plan("piecewize")


def test_a_missing_model_folder_is_said_before_anything_is_touched(
    tmp_path: Path, fake_venv: Venv, home: Path
) -> None:
    settings = host_settings(tmp_path, fake_venv.folder, model=str(tmp_path / "no-model"))
    host = LocalHost(settings, home)
    with pytest.raises(PreflightFailed, match="no-model"):
        Deploys(host, fake_venv, tmp_path).plan()
    host.close()


def test_a_model_that_lacks_a_shard_is_said_before_anything_is_touched(
    tmp_path: Path, fake_venv: Venv, home: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors"):
        (model / name).write_text("x")
    settings = host_settings(tmp_path, fake_venv.folder, model=str(model))
    host = LocalHost(settings, home)
    deploys = Deploys(host, fake_venv, tmp_path)
    with pytest.raises(PreflightFailed, match="model-00002-of-00002"):
        deploys.plan()
    assert deploys.plan("plain", "flags.load-format=dummy").unchanged is None
    host.close()


def test_a_state_folder_that_others_may_write_to_is_refused(deploys: Deploys) -> None:
    deploys.plan()
    Path(deploys.settings.state).chmod(0o777)
    with pytest.raises(ToolError, match="others may write"):
        deploys.plan()


def test_a_patch_that_cannot_be_made_starts_nothing(deploys: Deploys) -> None:
    made = deploys.plan("patched")
    (deploys.venv.site / FILE).write_bytes(b"# edited meanwhile\n")
    with pytest.raises(PatchRefused):
        deploys.carry_out(made)
    assert deploys.host.call("runs.ids", state=deploys.settings.state) == {"ids": []}
    assert (deploys.venv.site / FILE).read_bytes() == b"# edited meanwhile\n"


def test_two_deploys_at_once_is_one_too_many(
    deploys: Deploys, lab: HostSettings, home: Path
) -> None:
    other = LocalHost(lab, home)
    host_lock.take_lock(deploys.host, lab, "deploy plain")
    with host_lock.releasing_lock(deploys.host), pytest.raises(Locked, match="another task"):
        host_lock.take_lock(other, lab, "stop")
    assert host_lock.take_lock(other, lab, "stop") is None
    other.close()


def test_secrets_reach_the_server_and_not_what_is_shown(deploys: Deploys) -> None:
    made, _ = deploys.deploy(SERVES, "plain", "env.HF_TOKEN=hf_s3cret", "flags.api-key=k_s3cret")
    record = made.record()
    assert "s3cret" not in json.dumps([record["argv"], record["environment"]])
    assert environment_of(deploys, made.run)["HF_TOKEN"] == "hf_s3cret"
    for kept in (deploys.runs / made.run).iterdir():
        assert b"s3cret" not in kept.read_bytes(), kept.name
