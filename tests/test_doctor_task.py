"""`inv doctor` on a host without SSH: what it looks at, and what stops a deploy."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv, host_settings
from sessions import Task

from remote import doctor
from remote.core.doctor import Pin
from remote.errors import Unreachable
from remote.host import Link


def examined(task: Task) -> dict[str, list[dict[str, Any]]]:
    by_check: dict[str, list[dict[str, Any]]] = {}
    for line in doctor.examine(task.session)["lines"]:
        by_check.setdefault(line["check"], []).append(line)
    return by_check


@pytest.fixture
def task(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Task:
    return Task(local_host, fake_venv, tmp_path)


def test_every_part_of_the_host_has_its_line(task: Task) -> None:
    checks = examined(task)
    for check in ("ssh", "host key", "clock", "venv", "GPUs", "port", "disk", "model", "/dev/shm"):
        assert check in checks
    assert checks["clock"][0]["level"] == "ok"
    assert checks["port"][0]["level"] == "ok"


def test_a_module_that_is_not_there_is_a_failure_with_its_remedy(task: Task) -> None:
    (line,) = [each for each in examined(task)["imports"] if "torch" in each["text"]]
    assert line["level"] == "failure" and "pip install torch" in line["remedy"]


def test_a_taken_port_is_named(task: Task) -> None:
    with socket.create_server(("127.0.0.1", task.host.settings.port)):
        (line,) = examined(task)["port"]
    assert line["level"] == "failure" and "--pid" in line["remedy"]


def test_a_host_that_cannot_be_reached_is_one_failure_with_its_remedy(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(host: LocalHost) -> Link:
        raise Unreachable("no answer from gpu:22", hint="is the host up?")

    monkeypatch.setattr(LocalHost, "link", refuse)
    found = doctor.examine(task.session)
    assert found["failures"] == 1 and found["lines"][0]["check"] == "ssh"
    assert found["lines"][0]["remedy"] == "is the host up?"


def test_a_venv_that_is_not_there_is_one_failure(
    tmp_path: Path, home: Path, fake_venv: Venv
) -> None:
    gone = LocalHost(host_settings(tmp_path, tmp_path / "gone"), home, python="/gone/bin/python")
    found = doctor.examine(Task(gone, fake_venv, tmp_path).session)
    gone.close()
    assert [line["check"] for line in found["lines"] if line["level"] == "failure"] == ["venv"]


def test_requirements_count_as_the_hosts_python_reads_them(
    task: Task, local_host: LocalHost, fake_venv: Venv
) -> None:
    metadata = fake_venv.site / "sglang-0.5.9.dist-info" / "METADATA"
    metadata.write_text(
        metadata.read_text()
        + "Requires-Dist: torch==2.9.1\nRequires-Dist: flashinfer_python==0.6\n"
        "Requires-Dist: av; sys_platform == 'win32'\nRequires-Dist: x; extra == 'diffusion'\n"
    )
    pins = doctor.requirements(local_host, local_host.settings, "3.12.3")
    assert pins == [Pin("torch", "==2.9.1", "2.9.1"), Pin("flashinfer-python", "==0.6", None)]


@pytest.mark.parametrize(
    ("wanted", "installed", "holds"),
    [
        ("==2.9.1", "2.9.1+cu128", True),
        ("==2.9.1", "2.13.0", False),
        ("", "1", True),
        (">=1", None, False),
        ("<0.8,>=0.7.11", "0.7.30", True),
        (">=1", "not a version", False),
    ],
)
def test_a_requirement_is_met_or_not(wanted: str, installed: str | None, holds: bool) -> None:
    assert doctor.met(Pin("x", wanted, installed)) is holds
