"""A host read in one go, and its SGLang's own flags."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from hosts import LocalHost, Venv, eventually, new_run

from remote import venv
from remote.config import HostSettings
from remote.core.host_facts import HostFacts
from remote.errors import PreflightFailed
from remote.payload import facts


@pytest.fixture
def read(lab: HostSettings, local_host: LocalHost) -> HostFacts:
    return venv.survey(local_host, lab)


def test_versions_come_from_metadata_not_from_imports(
    lab: HostSettings, local_host: LocalHost, fake_venv: Venv
) -> None:
    fake_venv.install("flashinfer-python", "0.6.3", {"flashinfer/__init__.py": b"raise OSError"})
    fake_venv.install("flashinfer-cubin", "9.9", {})
    found = venv.survey(local_host, lab)
    assert found.version("flashinfer-python") == "0.6.3"
    assert found.version("sglang") == "0.5.9" and found.version("torch") == "2.9.1"
    assert found.site_packages == str(fake_venv.site)


def test_a_names_spelling_on_disk_does_not_matter(fake_venv: Venv) -> None:
    for folder in ("Apache_TVM.ffi-0.1.9.dist-info", "py_spy-0.4.dist-info", "notes.txt"):
        (fake_venv.site / folder).mkdir()
    found = facts.distributions(str(fake_venv.site))
    assert found["apache-tvm-ffi"]["version"] == "0.1.9"
    assert found["py-spy"]["version"] == "0.4"


def test_an_editable_install_names_its_source(fake_venv: Venv) -> None:
    info = fake_venv.site / "sglang-0.5.9.dist-info"
    (info / "direct_url.json").write_text(
        '{"url": "file:///src/sg", "dir_info": {"editable": true}}'
    )
    assert facts.distributions(str(fake_venv.site))["sglang"]["editable"] == "/src/sg"
    (info / "direct_url.json").write_text("not json")
    assert facts.distributions(str(fake_venv.site))["sglang"]["editable"] is None


def test_the_commit_of_what_was_installed_from_git_is_told(fake_venv: Venv) -> None:
    info = fake_venv.site / "sglang-0.5.9.dist-info"
    assert facts.distributions(str(fake_venv.site))["sglang"]["commit"] is None
    (info / "direct_url.json").write_text(
        '{"url": "https://github.com/x/y", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}'
    )
    assert facts.distributions(str(fake_venv.site))["sglang"]["commit"] == "abc123"


def test_the_toolkits_version_is_told_where_it_tells_it(tmp_path: Path) -> None:
    assert facts._cuda_version(str(tmp_path)) is None
    (tmp_path / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}')
    assert facts._cuda_version(str(tmp_path)) == "12.8.1"
    (tmp_path / "version.json").write_text('["12.8"]')
    assert facts._cuda_version(str(tmp_path)) is None


def test_the_identity_changes_with_what_is_installed(fake_venv: Venv) -> None:
    folder, site = str(fake_venv.folder), str(fake_venv.site)
    before = facts.identity(folder, site)
    assert facts.identity(folder, site) == before
    fake_venv.install("flashinfer-python", "0.6.3", {})
    assert facts.identity(folder, site) != before


def test_a_venv_without_torch_is_refused_with_the_interpreter_that_was_tried(
    lab: HostSettings, local_host: LocalHost, fake_venv: Venv
) -> None:
    for metadata in fake_venv.site.glob("torch-*/*"):
        metadata.unlink()
    (fake_venv.site / "torch-2.9.1.dist-info").rmdir()
    with pytest.raises(PreflightFailed, match="no torch") as refusal:
        venv.require_sglang(venv.survey(local_host, lab), lab)
    assert f"{lab.venv}/bin/python" in refusal.value.evidence[0]
    assert "hosts.lab.venv" in str(refusal.value.hint)


def test_the_ports_owner_is_named(lab: HostSettings, local_host: LocalHost) -> None:
    assert venv.survey(local_host, lab).port_owner is None
    with socket.create_server(("127.0.0.1", lab.port)):
        owner = venv.survey(local_host, lab).port_owner
    assert owner is not None and owner.pid == os.getpid() and owner.run is None


def test_a_local_model_that_is_missing_is_told_from_a_name_on_the_hub(tmp_path: Path) -> None:
    assert facts._model("org/tiny")["local"] is False
    assert facts._model(str(tmp_path / "gone")) == {
        "path": str(tmp_path / "gone"),
        "local": True,
        "exists": False,
        "files": None,
    }
    assert facts._model(str(tmp_path))["exists"] is True


def test_runs_are_read_with_what_lives_of_them(
    lab: HostSettings, local_host: LocalHost, fake_venv: Venv
) -> None:
    lives, ended = new_run(), new_run()
    fake_venv.play("wait()")
    script = fake_venv.launch_script(lab.port)
    for run, what in ((lives, script), (ended, b"exit 0\n")):
        local_host.call("runs.start", data=what, state=lab.state, run=run, note={})
    (Path(lab.state) / "runs" / "20261129-120000-broken").mkdir()

    def settled() -> dict[str, str] | None:
        found = {run.run: run.state for run in venv.survey(local_host, lab).runs}
        return found if found == {lives: "starting", ended: "ended"} else None

    assert eventually(settled)


def test_the_free_space_of_a_folder_that_is_not_there_yet_is_its_parents(read: HostFacts) -> None:
    assert read.state_free_bytes and read.state_free_bytes > 0


def test_the_parsers_flags_are_asked_once(
    lab: HostSettings, local_host: LocalHost, fake_venv: Venv
) -> None:
    parser = venv.installed_parser(local_host, lab, lambda text: None)
    assert parser.version == "0.5.9" and "tp-size" in parser.flags
    (fake_venv.folder / "bin" / "python").unlink()
    again = venv.installed_parser(local_host, lab, lambda text: None)
    assert again == parser


def test_a_parser_that_does_not_answer_shows_why(
    lab: HostSettings, local_host: LocalHost, fake_venv: Venv
) -> None:
    python = fake_venv.folder / "bin" / "python"
    python.write_text('#!/bin/sh\necho "ImportError: libcudart.so.12" >&2\nexit 1\n')
    with pytest.raises(PreflightFailed) as refusal:
        venv.installed_parser(local_host, lab, lambda text: None)
    assert any("libcudart" in line for line in refusal.value.evidence)
    assert not list((Path(lab.state) / "cache").glob("parser-*"))


def test_the_interpreter_in_use_is_told(read: HostFacts) -> None:
    assert read.python_version == ".".join(map(str, sys.version_info[:3]))
