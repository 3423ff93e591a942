"""Logging in as OpenSSH would, and what is said where that fails: over a real sshd."""

from __future__ import annotations

import errno
import getpass
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hosts import host_settings
from rig import PROJECT, Client, OpenSSH, free_port

from remote import errors
from remote.config import Address, HostSettings, SSHSettings
from remote.ssh import SSHHost

ME = getpass.getuser()
PHRASE = "a secret"


def tool(*words: object, **options: Any) -> None:
    """Run a program of OpenSSH's, found where it really is."""
    program = shutil.which(str(words[0]), path=os.defpath + ":/usr/local/bin")
    assert program, "apt install openssh-client"
    line = [program, *map(str, words[1:])]
    subprocess.run(line, check=True, capture_output=True, timeout=60, **options)


@dataclass(frozen=True)
class Lab:
    """An sshd that accepts four keys: of each type, encrypted, and one in the agent alone."""

    sshd: OpenSSH
    folder: Path

    def key(self, name: str) -> Path:
        return self.folder / name

    @property
    def settings(self) -> HostSettings:
        """The sshd by its alias in a ssh_config of the test's own; see `config`."""
        return host_settings(
            self.folder,
            Path("/venv"),
            address=Address("gpu"),
            ssh_config=str(self.folder / "config"),
        )

    def config(self, *lines: str, more: str = "") -> None:
        text = "\n  ".join(
            [
                "Host gpu",
                f"HostName 127.0.0.1\n  Port {self.sshd.port}\n  User {ME}",
                f"UserKnownHostsFile {self.sshd.known_hosts}\n  GlobalKnownHostsFile none",
                *lines,
            ]
        )
        (self.folder / "config").write_text(f"{text}\n{more}")

    def login(self, **changed: Any) -> str:
        """Log in; by what."""
        host = SSHHost(replace(self.settings, **changed), SSHSettings(5.0, False, 5.0, 0.0))
        try:
            return host.link().login
        finally:
            host.close()

    def refused(self, kind: type[errors.ToolError], **changed: Any) -> str:
        """Fail to; what is said."""
        with pytest.raises(kind) as caught:
            self.login(**changed)
        assert type(caught.value) is kind
        assert caught.value.hint
        return "\n".join([caught.value.message, *caught.value.evidence, caught.value.hint])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("logins")
    sshd = OpenSSH(folder / "sshd")
    keys = {"plain": "", "encrypted": PHRASE, "held": ""}
    for name, phrase in keys.items():
        tool("ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", folder / name, "-C", name)
    tool("ssh-keygen", "-q", "-t", "rsa", "-N", PHRASE, "-f", folder / "rsa", "-m", "PEM")
    accepted = [(folder / f"{name}.pub").read_text() for name in (*keys, "rsa")]
    (sshd.folder / "authorized_keys").write_text("".join(accepted))
    sshd.start()
    yield Lab(sshd, folder)
    sshd.stop()


@pytest.fixture(params=["with ssh", "without ssh"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSH reads ssh_config, or we do."""
    if request.param == "without ssh":
        monkeypatch.setenv("PATH", "/nowhere")


@contextmanager
def an_agent(folder: Path, *keys: Path) -> Iterator[Path]:
    """An agent that holds these keys; its socket."""
    at = folder / "agent"
    program = shutil.which("ssh-agent", path=os.defpath)
    assert program, "apt install openssh-client"
    agent = subprocess.Popen([program, "-D", "-a", str(at)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(at)) == 0:
                    break
            time.sleep(0.02)
        answer = folder / "askpass"
        answer.write_text(f"#!/bin/sh\necho '{PHRASE}'\n")
        answer.chmod(0o700)
        env = {"SSH_AUTH_SOCK": str(at), "SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
        for key in keys:
            tool("ssh-add", "-q", key, env=env)
        yield at
    finally:
        agent.terminate()
        agent.wait(10)


@pytest.fixture
def agent(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent with four strangers, the encrypted key, and one whose file is not here."""
    strangers = [tmp_path / f"stranger{number}" for number in range(4)]
    for path in strangers:
        tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
    with an_agent(tmp_path, *strangers, lab.key("encrypted"), lab.key("held")) as at:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(at))
        yield at


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A terminal whose user knows the passphrase; what it was asked."""
    return answering(monkeypatch, lambda: PHRASE)


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], str]) -> list[str]:
    prompts: list[str] = []

    def getpass_(prompt: str) -> str:
        prompts.append(prompt)
        return answer()

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", getpass_)
    return prompts


@pytest.mark.usefixtures("either", "agent")
def test_an_agent_holds_what_is_encrypted_here(lab: Lab) -> None:
    lab.config(f"IdentityFile {lab.key('encrypted')}", "IdentitiesOnly yes")
    assert "encrypted, by the agent" in lab.login()
    lab.config()
    assert "encrypted, by the agent" in lab.login(identity_file=lab.key("encrypted"))


@pytest.mark.usefixtures("either", "agent")
def test_an_agent_holds_what_a_public_file_names(lab: Lab, tmp_path: Path) -> None:
    public = tmp_path / "named.pub"
    shutil.copy(lab.key("held.pub"), public)
    lab.config(f"IdentityFile {public}", "IdentitiesOnly yes")
    assert "named.pub, by the agent" in lab.login()
    lab.config(f"IdentityFile {tmp_path}/named", "IdentitiesOnly yes")
    assert "named, by the agent" in lab.login()
    lab.config()
    assert "named.pub, by the agent" in lab.login(identity_file=public)


@pytest.mark.usefixtures("either", "agent")
def test_an_agent_is_asked_for_no_other_key(lab: Lab) -> None:
    other = lab.sshd.folder / "other_key"
    lab.config(f"IdentityFile {other}", "IdentitiesOnly yes")
    said = lab.refused(errors.AuthenticationFailed)
    assert "accepts none of our keys" in said
    assert said.count("offered") == 1
    said = lab.refused(errors.AuthenticationFailed, identity_file=Path(f"{other}.pub"))
    assert "there is no key to offer" in said


@pytest.mark.usefixtures("either", "agent")
def test_an_agent_is_asked_for_others_where_none_are_named(lab: Lab) -> None:
    lab.config("IdentityFile /nowhere/key")
    assert "SHA256:" in lab.login()
    lab.config("IdentityFile /nowhere/key", "IdentityAgent none")
    assert "there is no key to offer" in lab.refused(errors.AuthenticationFailed)


@pytest.mark.usefixtures("either", "agent")
def test_an_agent_may_be_named(lab: Lab, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK")
    lab.config("IdentityFile /nowhere/key", f"IdentityAgent {agent}")
    assert "SHA256:" in lab.login()
    lab.config("IdentityFile /nowhere/key", "IdentityAgent /nowhere/agent")
    assert "/nowhere/agent cannot be asked" in lab.refused(errors.AuthenticationFailed)


def test_an_agent_that_never_answers_is_passed_over(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.logins._AGENT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "agent"))
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        lab.config(*(f"IdentityFile {lab.key(name)}" for name in ("encrypted", "plain")))
        assert "plain" in lab.login()


def test_an_agent_that_does_not_sign(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user says no where it asks before each use of a key."""
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    monkeypatch.setenv("DISPLAY", "none")
    with an_agent(tmp_path) as at:
        tool("ssh-add", "-q", "-c", lab.key("held"), env={"SSH_AUTH_SOCK": str(at)})
        monkeypatch.setenv("SSH_AUTH_SOCK", str(at))
        lab.config(f"IdentityFile {lab.key('held.pub')}", "IdentitiesOnly yes")
        assert "the key could not be used" in lab.refused(errors.AuthenticationFailed)


@pytest.mark.usefixtures("either", "agent")
def test_an_agent_of_many_keys_ends_the_login_and_that_is_said(lab: Lab, tmp_path: Path) -> None:
    strict = OpenSSH(tmp_path / "strict", options=("MaxAuthTries 2",))
    strict.start()
    try:
        where = [f"Port {strict.port}", f"UserKnownHostsFile {strict.known_hosts}"]
        behind = Lab(strict, lab.folder)
        behind.config("IdentityFile /nowhere/key", *where)
        said = behind.refused(errors.AuthenticationFailed)
    finally:
        strict.stop()
    assert "closed the connection after 2 keys were offered" in said
    assert "IdentitiesOnly" in said and "hosts.lab.identity_file" in said


def test_a_certificate_is_offered_with_a_file_and_with_an_agents_key(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("authority", "file", "other"):
        tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name)
    authority = tmp_path / "authority"
    tool("ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", ME, tmp_path / "file.pub")
    certificate = (tmp_path / "file-cert.pub").rename(tmp_path / "certificate")
    sshd = OpenSSH(tmp_path / "sshd", options=(f"TrustedUserCAKeys {authority}.pub",))
    sshd.start()
    try:
        behind = Lab(sshd, tmp_path)
        behind.config(
            f"IdentityFile {tmp_path}/other",
            f"IdentityFile {tmp_path}/file",
            f"CertificateFile {certificate}",
            "IdentitiesOnly yes",
        )
        assert "file, with a certificate" in behind.login()
        with an_agent(tmp_path, tmp_path / "file") as at:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(at))
            (tmp_path / "file").unlink()
            assert "file, by the agent, with a certificate" in behind.login()
    finally:
        sshd.stop()


@pytest.mark.parametrize("name", ["encrypted", "rsa"])
def test_a_passphrase_is_asked_for_once(lab: Lab, asked: list[str], name: str) -> None:
    """The same key leads to a jump host and through it."""
    key = f"IdentityFile {lab.key(name)}"
    lab.config(key, "ProxyJump jump", more=jump(lab, key))
    assert name in lab.login()
    assert asked == [f"Passphrase for {lab.key(name)}: "]


def jump(lab: Lab, *lines: str, alias: str = "jump") -> str:
    """One more alias of the same sshd."""
    return "\n  ".join(
        [
            f"Host {alias}",
            f"HostName 127.0.0.1\n  Port {lab.sshd.port}\n  User {ME}",
            f"UserKnownHostsFile {lab.sshd.known_hosts}",
            *lines,
            "",
        ]
    )


def ctrl_d() -> str:
    raise EOFError


def ctrl_c() -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["encrypted", "rsa"])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: "wrong", "the passphrase of {} is wrong"),
        (lambda: "", "the key {} is encrypted and no passphrase was given"),
        (ctrl_d, "the key {} is encrypted and no passphrase was given"),
    ],
)
def test_a_passphrase_that_does_not_fit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, answer: Callable[[], str], said: str
) -> None:
    answering(monkeypatch, answer)
    lab.config(f"IdentityFile {lab.key(name)}", "IdentityAgent none")
    told = lab.refused(errors.AuthenticationFailed)
    assert said.format(lab.key(name)) in told
    assert "ssh-add" in told


def test_a_passphrase_that_nobody_can_be_asked_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    lab.config(f"IdentityFile {lab.key('encrypted')}", "IdentityAgent none")
    assert "there is no terminal to ask for its passphrase" in lab.refused(
        errors.AuthenticationFailed
    )


def test_a_passphrase_need_not_be_given_where_another_key_fits(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, ctrl_d)
    lab.config(*(f"IdentityFile {lab.key(name)}" for name in ("encrypted", "plain")))
    assert "plain" in lab.login()
    assert not asked


def test_ctrl_c_at_a_passphrase_is_an_interruption(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, ctrl_c)
    lab.config(f"IdentityFile {lab.key('encrypted')}")
    with pytest.raises(KeyboardInterrupt):
        lab.login()


@pytest.mark.parametrize(
    ("typed", "status", "said"),
    [("wrong\n", 255, "is wrong"), ("\x04", 255, "no passphrase was given"), ("\x03", 130, "")],
)
def test_a_user_at_a_terminal(lab: Lab, tmp_path: Path, typed: str, status: int, said: str) -> None:
    client = Client(tmp_path / "project", {"gpu": entry(lab, lab.key("encrypted"))})
    lab.config()
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(client.folder)
        env = {"PATH": os.environ["PATH"], "HOME": str(client.folder / "home"), "TERM": "dumb"}
        line = [sys.executable, "-m", "invoke", "status"]
        os.execve(sys.executable, line, {**env, "PYTHONPATH": str(PROJECT)})
    shown = ""
    with suppress(OSError):  # the terminal ends with its process
        while select.select([terminal], [], [], 60)[0]:
            shown += os.read(terminal, 4096).decode()
            if typed and shown.rstrip(" ").endswith("encrypted:"):
                time.sleep(0.2)  # the prompt is written before the echo is off
                os.write(terminal, typed.encode())
                typed = ""
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status, shown
    assert said in shown
    assert "Traceback" not in shown


def entry(lab: Lab, identity: Path) -> dict[str, Any]:
    return {
        "address": "gpu",
        "venv": "/venv",
        "model": "org/tiny",
        "port": 30000,
        "ssh_config": str(lab.folder / "config"),
        "identity_file": str(identity),
    }


@pytest.mark.usefixtures("either")
def test_a_jump_in_a_circle_is_a_mistake_in_the_configuration(lab: Lab) -> None:
    lab.config("ProxyJump gpu")
    said = lab.refused(errors.ConfigError)
    assert "ProxyJump leads in a circle: gpu -> gpu" in said
    lab.config("ProxyJump one", more=jump(lab, "ProxyJump two", alias="one"))
    with (lab.folder / "config").open("a") as file:
        file.write(jump(lab, "ProxyJump gpu", alias="two"))
    said = lab.refused(errors.ConfigError)
    assert "gpu -> one -> two -> gpu" in said


@pytest.mark.usefixtures("either")
def test_a_jump_without_an_end_is_one_too(lab: Lab) -> None:
    lab.config("ProxyJump x%n", more="Host *\n  ProxyJump x%n\n")
    assert "more than 16 hosts" in lab.refused(errors.ConfigError)
    lab.config("ProxyJump a:b:c@d:e")
    lab.refused(errors.ConfigError)


@pytest.mark.usefixtures("either")
def test_a_jump_over_several_hosts(lab: Lab) -> None:
    key = f"IdentityFile {lab.key('plain')}"
    more = jump(lab, key, alias="one") + jump(lab, key, alias="two")
    lab.config(key, "ProxyJump one,two", more=more)
    assert "plain" in lab.login()


@pytest.mark.usefixtures("either")
def test_a_jump_that_leads_nowhere(lab: Lab) -> None:
    key = f"IdentityFile {lab.key('plain')}"
    lab.config(key, "ProxyJump jump", more=jump(lab, key))
    elsewhere = Address("gpu", port=free_port())
    said = lab.refused(errors.Unreachable, address=elsewhere)
    assert f"which is to lead to 127.0.0.1:{elsewhere.port}, does not get there" in said


@pytest.mark.usefixtures("either")
def test_a_jump_by_a_command(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "a pipe.py"
    script.write_text(PIPE)
    shutil.copy(lab.key("plain"), tmp_path / f"{ME}@127.0.0.1")
    lab.config(
        f"ProxyCommand {sys.executable} '{script}' %h %p",
        f"IdentityFile {tmp_path}/%r@%h",
    )
    assert f"{ME}@127.0.0.1" in lab.login()


@pytest.mark.usefixtures("either")
def test_a_jump_by_a_command_that_fails(lab: Lab) -> None:
    lab.config("ProxyCommand /nowhere/nc %h %p")
    assert "the ProxyCommand to 127.0.0.1:" in lab.refused(errors.Unreachable)


#: A program between its own streams and a port.
PIPE = """
import os, socket, sys, threading
made = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def back():
    while data := made.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    made.sendall(data)
"""


def accepting(lab: Lab, known_hosts: Path) -> str:
    """What is said where a new key is to be recorded in that file."""
    settings = replace(lab.settings, known_hosts=known_hosts, identity_file=lab.key("plain"))
    host = SSHHost(settings, SSHSettings(5.0, True, 5.0, 0.0))
    try:
        with pytest.raises(errors.HostKeyRefused) as caught:
            host.link()
    finally:
        host.close()
    assert caught.value.hint
    return "\n".join([caught.value.message, *caught.value.evidence])


def test_a_host_known_by_a_key_of_another_type(lab: Lab, tmp_path: Path) -> None:
    lab.config()
    tool("ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", tmp_path / "key")
    kept = tmp_path / "known_hosts"
    before = f"# mine\n[127.0.0.1]:{lab.sshd.port} {(tmp_path / 'key.pub').read_text()}"
    kept.write_text(before)
    said = accepting(lab, kept)
    assert "has CHANGED (a key of another type, ssh-rsa, is on record in" in said
    assert f"{kept}:2" in said
    assert "it showed ssh-ed25519 SHA256:" in said
    assert kept.read_text() == before


def test_a_new_key_that_cannot_be_recorded_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.config()
    (tmp_path / "file").write_text("")
    for path, why in {
        tmp_path: errno.EISDIR,
        Path("/proc/version"): None,
        Path("/proc/known_hosts"): errno.ENOENT,
        tmp_path / "file" / "known_hosts": errno.EEXIST,
    }.items():
        said = accepting(lab, path)
        assert f"cannot be recorded in {path}" in said
        assert why is None or os.strerror(why) in said


def test_files_that_are_no_keys(lab: Lab, tmp_path: Path) -> None:
    lab.config()
    (tmp_path / "text").write_text("not a key\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_text("")
    for name in ("text", "binary", "empty"):
        said = lab.refused(errors.AuthenticationFailed, identity_file=tmp_path / name)
        assert "there is no key to offer" in said
        assert f"{tmp_path / name}: it holds no key that can be read" in said
    said = lab.refused(errors.AuthenticationFailed, identity_file=tmp_path)
    assert f"{tmp_path}: Is a directory" in said
    said = lab.refused(errors.AuthenticationFailed, identity_file=lab.key("held.pub"))
    assert "it is a public key, and no agent holds the private one" in said


def test_a_host_that_takes_no_keys_says_what_it_takes(lab: Lab, tmp_path: Path) -> None:
    options = ("Match all", "PubkeyAuthentication no", "PasswordAuthentication yes")
    sshd = OpenSSH(tmp_path / "sshd", options=options)
    sshd.start()
    try:
        settings = {
            "address": Address("127.0.0.1", ME, sshd.port),
            "known_hosts": sshd.known_hosts,
            "ssh_config": "none",
            "identity_file": lab.key("plain"),
        }
        said = lab.refused(errors.AuthenticationFailed, **settings)
    finally:
        sshd.stop()
    assert "takes no keys" in said and "it takes: password" in said


def test_who_hangs_up_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an sshd that is full, or that does not want this machine, does."""
    monkeypatch.setattr("remote.connecting._TRIES", 2)
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        server = subprocess.Popen(
            [sys.executable, "-c", HANGS_UP], stdin=door.fileno(), stdout=subprocess.DEVNULL
        )
        try:
            said = lab.refused(
                errors.Unreachable, address=Address("127.0.0.1", ME, port), ssh_config="none"
            )
        finally:
            server.kill()
            server.wait()
    assert "hangs up at once" in said


HANGS_UP = """
import socket
door = socket.socket(fileno=0)
while True:
    door.accept()[0].close()
"""


@pytest.mark.parametrize("name", ["a..b", "x" * 70])
def test_a_name_that_can_be_none(lab: Lab, name: str) -> None:
    said = lab.refused(errors.Unreachable, address=Address(name), ssh_config="none")
    assert "does not resolve" in said


@pytest.mark.usefixtures("either")
def test_a_configuration_that_makes_no_sense(lab: Lab) -> None:
    (lab.folder / "config").write_text("Host gpu\n  Port high\n")
    assert "ssh_config cannot be read for gpu" in lab.refused(errors.ConfigError)
    (lab.folder / "config").write_text("Host gpu\n  Include config\n  Include ~nobody-here/x\n")
    lab_config = str(lab.folder / "absent")
    assert "cannot be read" in lab.refused(errors.ConfigError, ssh_config=lab_config)
