"""What `ssh -G` prints, as settings."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from remote.core.ssh_options import SSHOptions, filled, parse


def resolved(tmp_path: Path, config: str, alias: str = "gpu") -> SSHOptions:
    """The text that the installed OpenSSH prints for a config of the test's own."""
    ssh = shutil.which("ssh")
    assert ssh, "apt install openssh-client"
    path = tmp_path / "config"
    path.write_text(config)
    path.chmod(0o600)
    done = subprocess.run(
        [ssh, "-G", "-F", path, "--", alias], check=True, capture_output=True, text=True
    )
    return parse(done.stdout)


def test_an_alias_with_everything(tmp_path: Path) -> None:
    found = resolved(
        tmp_path,
        """
Host gpu
  HostName 10.0.0.7
  User root
  Port 2222
  IdentityFile ~/.ssh/lab
  IdentityFile /keys/second
  CertificateFile ~/.ssh/lab-cert.pub
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile /kept/kh1 /kept/kh2
  GlobalKnownHostsFile /etc/kh
  HostKeyAlias lab-gpu
  StrictHostKeyChecking accept-new
  ProxyJump ann@jump:2200,inner
  ConnectTimeout 7
  ServerAliveInterval 20
""",
    )
    assert found == SSHOptions(
        hostname="10.0.0.7",
        port=2222,
        user="root",
        identity_files=("~/.ssh/lab", "/keys/second"),
        certificate_files=("~/.ssh/lab-cert.pub",),
        identities_only=True,
        agent=False,
        known_hosts=("/kept/kh1", "/kept/kh2"),
        system_known_hosts=("/etc/kh",),
        host_key_alias="lab-gpu",
        accept_new=True,
        proxy_jump="ann@jump:2200,inner",
        proxy_command=None,
        connect_timeout_s=7.0,
        keepalive_s=20,
    )


def test_a_name_that_no_config_knows(tmp_path: Path) -> None:
    found = resolved(tmp_path, "", "box.lab")
    assert (found.hostname, found.port, found.agent) == ("box.lab", 22, True)
    assert any(path.endswith("/.ssh/known_hosts") for path in found.known_hosts)
    assert not found.accept_new and not found.identities_only
    assert found.proxy_jump is None and found.connect_timeout_s is None
    assert found.keepalive_s == 0


@pytest.mark.parametrize(
    ("said", "accepts"),
    [("ask", False), ("yes", False), ("accept-new", True), ("no", True), ("off", True)],
)
def test_new_keys_are_accepted_where_the_config_says_so(
    tmp_path: Path, said: str, accepts: bool
) -> None:
    assert resolved(tmp_path, f"StrictHostKeyChecking {said}\n").accept_new is accepts


def test_a_proxy_command_keeps_its_words(tmp_path: Path) -> None:
    found = resolved(tmp_path, "Host gpu\n  ProxyCommand nc -X 5 %h %p\n")
    assert found.proxy_command is not None and found.proxy_command.startswith("nc -X 5 ")


def test_none_is_no_value() -> None:
    found = parse(
        "hostname box\nproxyjump none\nproxycommand none\nuserknownhostsfile none\n"
        "identityfile none\nconnecttimeout none\nhostkeyalias none\n"
    )
    assert found == SSHOptions("box", known_hosts=(), system_known_hosts=())


def test_intervals_may_have_units() -> None:
    found = parse("hostname box\nserveraliveinterval 2m\nconnecttimeout 1m30s\n")
    assert (found.keepalive_s, found.connect_timeout_s) == (120, 90.0)


def test_an_agent_may_be_named_or_left_out(tmp_path: Path) -> None:
    named = resolved(tmp_path, "IdentityAgent /run/agent.sock\n")
    assert (named.agent, named.agent_socket) == (True, "/run/agent.sock")
    usual = resolved(tmp_path, "IdentityAgent SSH_AUTH_SOCK\n")
    assert (usual.agent, usual.agent_socket) == (True, None)


def test_tokens_and_variables_are_filled_in_and_others_stay() -> None:
    tokens, variables = {"h": "10.0.0.7", "p": "2222"}, {"KEYS": "/keys"}
    assert filled("nc %h %p", tokens, variables) == "nc 10.0.0.7 2222"
    assert filled("${KEYS}/%h-%%h-%x-${NONE}", tokens, variables) == "/keys/10.0.0.7-%h-%x-${NONE}"
