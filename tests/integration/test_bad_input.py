"""Each wrong input gives one clear error with host, evidence and hint, and its exit code."""

from __future__ import annotations

import os
import signal
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rig import Client, OpenSSH, free_port, started, wait_for

from remote.sandbox.control import Sandbox


def with_entry(client: Client, entry: dict[str, Any], **changes: Any) -> None:
    """Change the host's entry; None takes a key away."""
    changed = {key: value for key, value in {**entry, **changes}.items() if value is not None}
    client.configure({"gpu": changed}, {})


def deploy(client: Client, *words: str) -> tuple[int, str]:
    done = client.inv("deploy", "baseline", *words)
    assert "Traceback" not in done.output, done.output
    return done.status, done.stderr


def test_nobody_listens(client: Client, entry: dict[str, Any]) -> None:
    with_entry(client, entry, address=f"root@127.0.0.1:{free_port()}")
    status, error = deploy(client)
    assert status == 255
    assert "error on gpu: cannot connect to 127.0.0.1:" in error
    assert "hint:" in error


def test_a_name_that_does_not_resolve(client: Client, entry: dict[str, Any]) -> None:
    with_entry(client, entry, address="root@no-such-host.invalid")
    status, error = deploy(client)
    assert status == 255
    assert "no-such-host.invalid does not resolve" in error


@pytest.mark.parametrize(
    ("greeting", "goes", "said"),
    [
        ("", False, "takes the connection, but no SSH server answers in 1 s"),
        ("SSH-2.0-OpenSSH_9.6", False, "takes the connection, but no SSH server answers in 1 s"),
        ("220 mail.example ESMTP", False, "it says: 220 mail.example ESMTP"),
        ("HTTP/1.1 400 Bad Request", True, "it says: HTTP/1.1 400 Bad Request"),
        ("Exceeded MaxStartups", True, "hangs up at once"),  # sshd's own word, tried again
    ],
)
def test_something_else_than_ssh_answers(
    client: Client, entry: dict[str, Any], greeting: str, goes: bool, said: str
) -> None:
    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(greeting.encode() + b"\r\n" * bool(greeting))
            while self.request.recv(1024) and not goes:
                pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as other:
        threading.Thread(target=other.serve_forever).start()
        client.configure(
            {"gpu": {**entry, "address": f"root@127.0.0.1:{other.server_address[1]}"}},
            {"ssh": {"connect_timeout_s": 1}},
        )
        status, error = deploy(client)
        other.shutdown()
    assert status == 255
    assert said in error
    assert ("does not speak SSH to us" in error) == ("it says" in said)
    assert "ssh -v -p" in error


def test_an_unknown_host_key(client: Client, entry: dict[str, Any], openssh: OpenSSH) -> None:
    openssh.known_hosts.write_text("")
    status, error = deploy(client)
    assert status == 255
    assert "is not known" in error
    assert "ssh-ed25519 SHA256:" in error
    assert "accept_new_host_keys" in error
    # Accepted when asked for, and recorded: from then on it is known.
    client.configure({"gpu": entry}, {"ssh": {"accept_new_host_keys": True}})
    assert client.inv("status").status == 0
    assert openssh.public("host_key").split()[1] in openssh.known_hosts.read_text()
    client.configure({"gpu": entry}, {})
    assert client.inv("status").status == 0


def test_a_changed_host_key(client: Client, entry: dict[str, Any], openssh: OpenSSH) -> None:
    openssh.known_hosts.write_text(f"[127.0.0.1]:{openssh.port} {openssh.public('other_key')}")
    client.configure({"gpu": entry}, {"ssh": {"accept_new_host_keys": True}})
    status, error = deploy(client)
    assert status == 255
    assert "CHANGED" in error
    assert f"{openssh.known_hosts}:1" in error


def test_a_revoked_host_key(client: Client, entry: dict[str, Any], openssh: OpenSSH) -> None:
    with openssh.known_hosts.open("a") as file:
        file.write(f"@revoked * {openssh.public('host_key')}")
    status, error = deploy(client)
    assert status == 255
    assert "revoked" in error


def test_a_key_that_the_host_does_not_accept(
    client: Client, entry: dict[str, Any], openssh: OpenSSH
) -> None:
    openssh.authorize("other_key")
    status, error = deploy(client)
    assert status == 255
    assert "accepts none of our keys" in error
    assert str(openssh.identity) in error
    with_entry(client, entry, identity_file="/nowhere/key")
    assert deploy(client)[0] == 2


def test_a_venv_that_is_not_there(client: Client, entry: dict[str, Any]) -> None:
    with_entry(client, entry, venv="/nowhere/ml-env")
    status, error = deploy(client)
    assert status == 14
    assert "no Python at /nowhere/ml-env/bin/python" in error
    assert "hosts.gpu.venv" in error


def test_a_venv_without_torch(client: Client, entry: dict[str, Any], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    with_entry(client, entry, venv=str(tmp_path / "bare"))
    status, error = deploy(client)
    assert status == 14
    assert f"no torch in the venv {tmp_path}/bare" in error
    assert f"interpreter {tmp_path}/bare/bin/python" in error
    assert "hosts.gpu.venv" in error


def test_a_model_that_is_not_there(client: Client, entry: dict[str, Any]) -> None:
    with_entry(client, entry, model="/models/none")
    status, error = deploy(client)
    assert status == 14
    assert "/models/none" in error


def test_a_flag_that_the_parser_does_not_know(client: Client, entry: dict[str, Any]) -> None:
    status, error = deploy(client, "--set", "mem-fraction-statik=0.5")
    assert status == 14
    assert "did you mean --mem-fraction-static" in error
    assert not (Path(entry["state"]) / "runs").exists()


def test_settings_that_are_wrong(client: Client, entry: dict[str, Any]) -> None:
    with_entry(client, entry, model=None, prot=3, port="high")
    status, error = deploy(client)
    assert status == 2
    assert "hosts.gpu.model: missing" in error
    assert "hosts.gpu.prot: unknown key; did you mean port" in error
    assert "hosts.gpu.port" in error


def test_profiles_and_templates_that_are_wrong(
    client: Client, entry: dict[str, Any], tmp_path: Path
) -> None:
    done = client.inv("deploy", "piecewize")
    assert done.status == 2
    assert "piecewise" in done.stderr
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "launch.sh.j2").write_text("#!/bin/bash\n# {{ profil }}\n")
    client.configure({"gpu": entry}, {"templates": str(mine)})
    status, error = deploy(client)
    assert status == 2
    assert "launch.sh.j2, line 2" in error
    assert "profil" in error
    assert not (Path(entry["state"]) / "runs").exists()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_host_vanishes(
    client: Client, entry: dict[str, Any], openssh: OpenSSH, moment: str
) -> None:
    client.configure({"gpu": entry}, {"ssh": {"redial_s": 2}})
    if moment == "before":
        # Frozen while it asks SGLang's parser: nothing is left half done, and the next one works.
        process = client.start("deploy", "piecewise")
        assert process.stdout is not None
        while "which flags" not in process.stdout.readline():
            assert process.poll() is None
        openssh.stop()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 255, stderr
        assert "the connection was lost" in stderr
        assert not (Path(entry["state"]) / "runs").exists()
        openssh.start()
        assert client.inv("deploy", "piecewise").status == 0
        return
    process = client.start("deploy", "baseline")
    pid = int((started(process, entry["state"]) / "pid").read_text())
    openssh.stop()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 255, stderr
    os.kill(pid, 0)  # what runs on the host goes on
    openssh.start()
    assert client.inv("wait").status == 0


def test_another_task_holds_the_host(client: Client, entry: dict[str, Any]) -> None:
    first = client.start("deploy", "baseline")
    assert first.stdout is not None
    while "planning" not in first.stdout.readline():
        assert first.poll() is None
    lock = Path(entry["state"]) / "lock"
    wait_for(lock)
    second = client.inv("rollback-patch")
    assert second.status == 15
    assert "deploy baseline by " in second.stderr
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert client.inv("rollback-patch").status == 0


def test_a_write_that_fails(
    client: Client, entry: dict[str, Any], openssh: OpenSSH, embedded: Sandbox
) -> None:
    """Files can't grow past 4 KiB on this host, as on a disk that is full: nothing half done."""
    (patched,) = embedded.layout.venv.glob("lib/python3.*/site-packages/flashinfer/jit/cpp_ext.py")
    original = patched.read_bytes()
    assert client.inv("deploy", "baseline", "--dry").status == 0  # fills the parser's cache
    openssh.stop()
    openssh.file_limit_kib = 4
    openssh.start()
    done = client.inv("deploy", "baseline", "--add-patch", "cuda-version")
    assert done.status == 1, done.output
    assert "error on gpu: the host's system refused" in done.stderr
    assert "File too large" in done.stderr
    assert patched.read_bytes() == original
    runs = Path(entry["state"]) / "runs"
    assert not runs.exists() or not list(runs.iterdir())
    openssh.stop()
    openssh.file_limit_kib = None
    openssh.start()
    assert client.inv("status", "--json").json()["patches"]["interrupted"] is False
    assert client.inv("deploy", "baseline", "--dry").status == 0
