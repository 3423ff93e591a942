"""ssh_config read without OpenSSH: the same answers as `ssh -G` gives."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from remote import ssh_config
from remote.core.ssh_config import BadConfig
from remote.core.ssh_options import parse

SSH = shutil.which("ssh")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Configuration files; OpenSSH doesn't take a home from HOME, so names in them are absolute."""
    made = tmp_path / "files"
    made.mkdir()
    return made


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


CONFIG = """
# a comment
IdentityFile "{folder}/for all"
Host gpu? !gpu9   # a comment behind
  Include {folder}/inside
  Port=2222
Include {folder}/conf.d/*.conf {folder}/absent
Match originalhost gpu1 user ann
  ConnectTimeout 5
Host other
  Include {folder}/inside
Host *
  StrictHostKeyChecking accept-new
  User everybody
"""

INSIDE = """
User ann
Host gpu1
  HostName 10.0.0.1
Host gpu2
  HostName 10.0.0.2
Host other
  HostName 10.0.0.3
Match all
  ServerAliveInterval 7
"""


@pytest.mark.parametrize("alias", ["gpu1", "gpu2", "gpu9", "other", "elsewhere"])
def test_included_files_count_where_their_block_does(folder: Path, alias: str) -> None:
    assert SSH, "apt install openssh-client"
    config = written(folder / "config", CONFIG.format(folder=folder))
    written(folder / "inside", INSIDE)
    (folder / "conf.d").mkdir()
    written(folder / "conf.d" / "2.conf", "Host gpu1\n  IdentitiesOnly yes\n  ProxyJump none\n")
    written(folder / "conf.d" / "1.conf", f"Include {folder}/deeper\n")
    written(folder / "conf.d" / ".hidden.conf", "Port 1\n")
    written(folder / "deeper", "Host gpu* elsewhere\n  ProxyJump ann@jump:2200\n")
    said = subprocess.run(
        [SSH, "-G", "-F", config, "--", alias], check=True, capture_output=True, text=True
    )
    ours = parse(ssh_config.looked_up(alias, str(config)))
    theirs = parse(said.stdout)
    for name in ("hostname", "user", "port", "proxy_jump", "identities_only", "accept_new"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.connect_timeout_s == theirs.connect_timeout_s
    assert ours.keepalive_s == theirs.keepalive_s
    assert ours.identity_files == theirs.identity_files


def test_the_users_file_goes_before_the_systems(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_config, "_SYSTEM", folder / "ssh_config")
    written(folder / "ssh_config", "Include conf.d/*.conf\nHost *\n  User system\n")
    (folder / "conf.d").mkdir()
    written(folder / "conf.d" / "port.conf", "Port 2200\n")
    (home / ".ssh").mkdir()
    written(home / ".ssh" / "config", "Include lab\n")
    written(home / ".ssh" / "lab", "Host gpu\n  User ann\n")
    found = parse(ssh_config.looked_up("gpu", None))
    assert (found.user, found.port) == ("ann", 2200)
    assert parse(ssh_config.looked_up("other", None)).user == "system"
    # A file that is named replaces both, and relative names start from ~/.ssh there too.
    named = written(folder / "named", "Include lab\n")
    found = parse(ssh_config.looked_up("gpu", str(named)))
    assert (found.user, found.port) == ("ann", 22)
    assert parse(ssh_config.looked_up("gpu", "none")).user != "ann"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Include {folder}/config\n", "nested deeper than 16"),
        ("Include {folder}\n", "Is a directory"),
        ("Host 'gpu\n", "No closing quotation"),
        ("Match canonical localnetwork 10.0.0.0/8\n", "Match localnetwork"),
        ("Match host\n", "Match host"),
        ("nonsense\n", "nonsense"),
    ],
)
def test_what_makes_no_sense_is_said(folder: Path, text: str, said: str) -> None:
    config = written(folder / "config", text.format(folder=folder))
    with pytest.raises(BadConfig, match=said):
        ssh_config.looked_up("gpu", str(config))


def test_a_file_that_is_not_there_or_that_others_may_write_to(home: Path, folder: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        ssh_config.looked_up("gpu", str(folder / "absent"))
    (home / ".ssh").mkdir()
    written(home / ".ssh" / "config", "User ann\n").chmod(0o666)
    with pytest.raises(BadConfig, match="bad owner or permissions"):
        ssh_config.looked_up("gpu", None)
