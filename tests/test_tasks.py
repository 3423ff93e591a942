"""The tasks as a user types them: help, bad input, exit codes; each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import free_port

SOURCE = Path(__file__).parents[1]


class Project:
    """A copy of the project with an invoke.yaml of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "home").mkdir()
        shutil.copy(SOURCE / "tasks.py", folder)
        for name in ("remote", "templates"):
            (folder / name).symlink_to(SOURCE / name)

    def settings(self, text: str) -> None:
        (self.folder / "invoke.yaml").write_text(text)

    def inv(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "invoke", *words],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder / "home"),
                "LANG": "C.UTF-8",
                **env,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def gpu_host(port: int, **more: str) -> str:
    lines = "".join(f"    {key}: {value}\n" for key, value in more.items())
    return (
        "hosts:\n  gpu:\n"
        f"    address: root@127.0.0.1:{port}\n"
        "    venv: /root/ml-env\n    model: org/model\n    port: 30000\n"
        f"    ssh_config: none\n{lines}"
    )


def test_every_task_is_listed_with_what_it_does(project: Project) -> None:
    listed = project.inv("--list")
    assert listed.returncode == 0
    for name in (
        "deploy",
        "wait",
        "restart",
        "stop",
        "status",
        "doctor",
        "logs",
        "watch",
        "diagnose",
        "pull",
        "runs",
        "show",
        "diff",
        "rerun",
        "export",
        "rollback-patch",
        "restore",
        "run",
        "shell",
        "tunnel",
        "hosts",
        "profiles",
        "sandbox.status",
        "sandbox.down",
        "sandbox.reset",
    ):
        (line,) = [row for row in listed.stdout.splitlines() if row.split()[:1] == [name]]
        assert len(line.split()) > 3


def test_listing_imports_nothing_heavy_that_invoke_does_not() -> None:
    code = "import sys, invoke.main; before = {*sys.modules}; import tasks; " + (
        "print(*{*sys.modules} - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "remote" in loaded
    assert not loaded & {"fabric", "paramiko", "jinja2", "rich", "yaml", "asyncssh", "packaging"}


def test_help_names_every_option_with_its_meaning(project: Project) -> None:
    helped = project.inv("--help", "deploy")
    assert helped.returncode == 0
    for option in ("--host", "--dry", "--diff", "--restart", "--timeout", "--set", "--json"):
        assert option in helped.stdout
    assert "display" not in helped.stdout
    assert "Render, push, patch, start" in helped.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("deploy",), "deploy"),
        (("deploy", "piecewise", "--colour"), "colour"),
        (("deplyo", "piecewise"), "deplyo"),
    ],
)
def test_what_invoke_cannot_parse_is_its_error(
    project: Project, words: tuple[str, ...], named: str
) -> None:
    failed = project.inv(*words)
    assert failed.returncode == 1
    assert named in failed.stderr and "Traceback" not in failed.stderr


def test_hosts_lists_the_embedded_one_where_none_is_configured(project: Project) -> None:
    listed = project.inv("hosts", "--json")
    assert listed.returncode == 0
    (host,) = json.loads(listed.stdout)
    assert (host["host"], host["default"]) == ("sandbox", True)


def test_hosts_lists_what_is_configured_and_prose_goes_to_stderr(project: Project) -> None:
    project.settings(gpu_host(22))
    listed = project.inv("hosts", "--json")
    names = [host["host"] for host in json.loads(listed.stdout)]
    assert names == ["gpu", "sandbox"]
    assert "gpu" in listed.stderr
    assert "gpu" in project.inv("hosts").stdout


def test_past_runs_are_asked_without_a_host(project: Project) -> None:
    project.settings(gpu_host(1))
    listed = project.inv("runs", "--json")
    assert listed.returncode == 0
    assert json.loads(listed.stdout)["total"] == 0
    assert not (project.folder / "runs").exists()
    exported = project.inv("export", "--format", "csv", "--output", "runs.csv")
    assert exported.returncode == 0 and (project.folder / "runs.csv").read_text() == ""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("runs", "--sort", "sped"), "--sort"),
        (("runs", "--since", "yesterday"), "--since"),
        (("runs", "--limit", "few"), "limit"),
        (("show", "last"), "no run was started yet"),
        (("diff", "last", "last"), "no run was started yet"),
        (("rerun", "last"), "no run was started yet"),
        (("export", "--format", "xml"), "csv or jsonl"),
    ],
)
def test_a_past_run_that_there_is_not_is_exit_2(
    project: Project, words: tuple[str, ...], named: str
) -> None:
    failed = project.inv(*words)
    assert failed.returncode == 2
    assert named in failed.stderr and "Traceback" not in failed.stderr


def test_the_five_profiles_are_there(project: Project) -> None:
    listed = project.inv("profiles", "--json")
    names = {profile["profile"] for profile in json.loads(listed.stdout)}
    assert names >= {"baseline", "piecewise", "mscclpp", "single-batch-overlap", "expert-parallel"}


def test_without_a_set_up_sandbox_only_deploy_sets_it_up(project: Project) -> None:
    failed = project.inv("status")
    assert failed.returncode == 2
    assert "inv deploy PROFILE" in failed.stderr


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (gpu_host(22).replace("venv:", "vnev:"), "venv"),
        (gpu_host(22).replace("port: 30000", "port: many"), "hosts.gpu.port"),
        (gpu_host(22).replace("/root/ml-env", "ml-env"), "hosts.gpu.venv"),
        ("hots: {}\n", "hosts"),
    ],
)
def test_wrong_settings_are_refused_with_the_keys_path(
    project: Project, settings: str, told: str
) -> None:
    project.settings(settings)
    failed = project.inv("status")
    assert failed.returncode == 2
    assert told in failed.stderr and "Traceback" not in failed.stderr


def test_an_unknown_host_is_refused_with_those_there_are(project: Project) -> None:
    project.settings(gpu_host(22))
    failed = project.inv("status", "--host", "gpuu")
    assert failed.returncode == 2
    assert "did you mean 'gpu'" in failed.stderr.lower() or "gpu:" in failed.stderr


def test_a_host_that_is_not_there_is_named_and_exits_255(project: Project) -> None:
    port = free_port()
    project.settings(gpu_host(port))
    failed = project.inv("status")
    assert failed.returncode == 255
    assert f"127.0.0.1:{port}" in failed.stderr
    assert "hint:" in failed.stderr and "Traceback" not in failed.stderr


def test_an_error_is_one_json_document_too(project: Project) -> None:
    project.settings(gpu_host(free_port()))
    failed = project.inv("status", "--json")
    error = json.loads(failed.stdout)["error"]
    assert failed.returncode == error["exit_code"] == 255
    assert (error["type"], error["host"]) == ("Unreachable", "gpu")


def test_a_variable_of_the_environment_chooses_the_host(project: Project) -> None:
    project.settings(gpu_host(22))
    listed = json.loads(project.inv("hosts", "--json", INVOKE_HOST="sandbox").stdout)
    assert [host["host"] for host in listed if host["default"]] == ["sandbox"]


def test_a_settings_file_that_is_no_yaml_is_not_passed_over(project: Project) -> None:
    project.settings("hosts: [unclosed\n  x: :\n")
    failed = project.inv("hosts")
    assert failed.returncode != 0
    assert "invoke.yaml" in failed.stderr


def test_diagnose_needs_no_host_for_a_log(project: Project) -> None:
    log = SOURCE / "tests/cases/server_log/real/port-in-use.log"
    told = project.inv("diagnose", "--log", str(log), "--json")
    assert told.returncode == 0, told.stderr
    diagnosis = json.loads(told.stdout)
    assert (diagnosis["outcome"], diagnosis["kind"]) == ("crashed", "port_in_use")
    assert project.inv("diagnose", "--log", "none.log").returncode == 2


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("hosts: 5\n", "hosts: wanted a mapping, found 5"),
        ("hosts:\n", "hosts: is empty"),
        ("sandbox: here\n", "sandbox: wanted a mapping"),
        ("runs: {here: there}\n", "runs: wanted a value, found a mapping"),
        ("ssh: {redial_s: {a: 1}}\n", "ssh.redial_s: wanted a value"),
        ("- a\n- b\n", "the file: wanted a mapping"),
    ],
)
def test_settings_of_the_wrong_shape_are_told_by_their_path(
    project: Project, settings: str, named: str
) -> None:
    project.settings(settings)
    done = project.inv("hosts")
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_variable_that_is_no_number_is_told_by_its_name(project: Project) -> None:
    project.settings(gpu_host(1))
    done = project.inv("status", INVOKE_HOSTS_GPU_PORT="abc", INVOKE_SSH_REDIAL_S="soon")
    assert done.returncode == 2
    assert "INVOKE_HOSTS_GPU_PORT: wanted a number, found 'abc'" in done.stderr
    assert "INVOKE_SSH_REDIAL_S" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("logs", "--tail", "abc"),
        ("logs", "--tail", "-5"),
        ("deploy", "baseline", "--timeout", "abc"),
        ("deploy", "baseline", "--timeout", "-3"),
        ("deploy", "baseline", "--timeout", "0"),
        ("wait", "--timeout", "inf"),
        ("stop", "--pid", "1.5"),
        ("tunnel", "--local-port", "x"),
    ],
)
def test_an_option_that_is_no_number_is_refused_before_anything(
    project: Project, words: tuple[str, ...]
) -> None:
    project.settings(gpu_host(1))
    done = project.inv(*words)
    assert done.returncode == 2, done.stderr
    option = next(word for word in words if word.startswith("--"))
    assert f"{option}: wanted a" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_profile_is_told_before_the_embedded_host_is_set_up(project: Project) -> None:
    done = project.inv("deploy", "piecewize")
    assert done.returncode == 2
    assert "did you mean piecewise" in done.stderr
    assert not (project.folder / ".sandbox").exists()


def test_a_host_setting_that_names_no_host_is_refused(project: Project) -> None:
    project.settings(gpu_host(1) + "host: nope\n")
    done = project.inv("hosts")
    assert done.returncode == 2
    assert "'nope'" in done.stderr


def test_one_broken_profile_hides_no_other(project: Project) -> None:
    mine = project.folder / "mine" / "profiles"
    mine.mkdir(parents=True)
    (mine / "odd.yaml").write_text("wnat: {}\n")
    project.settings("templates: mine\n")
    done = project.inv("profiles")
    assert done.returncode == 0
    assert "piecewise" in done.stdout
    assert "odd" in done.stdout and "unusable" in done.stdout


def test_a_reader_that_has_had_enough_is_no_error(project: Project) -> None:
    command = f"{sys.executable} -m invoke --list | head -1; exit ${{PIPESTATUS[0]}}"
    env = {"PATH": os.environ["PATH"], "HOME": str(project.folder / "home")}
    for task in ("--list", "profiles --json", "hosts --json"):
        done = subprocess.run(
            ["bash", "-c", command.replace("--list", task)],
            cwd=project.folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("logs", "--run", ""), "--run"),
        (("status", "--host", ""), "--host"),
        (("logs", "--tail", ""), "--tail"),
        (("wait", "--run="), "--run"),
    ],
)
def test_an_option_given_empty_is_not_one_left_out(
    project: Project, words: tuple[str, ...], option: str
) -> None:

    done = project.inv(*words)
    assert done.returncode == 2, done.stderr
    assert option in done.stderr
