"""Which key a file stands for, also where it is encrypted: as ssh-keygen wrote it."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from remote.core import key_files


def made(path: Path, kind: str, passphrase: str = "") -> bytes:
    """A new key in that file; its public part."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", path], check=True, timeout=60
    )
    return base64.b64decode(Path(f"{path}.pub").read_text().split()[1])


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize("passphrase", ["", "a secret"])
def test_a_private_key_shows_its_public_part(tmp_path: Path, kind: str, passphrase: str) -> None:
    public = made(tmp_path / "key", kind, passphrase)
    assert key_files.public_part((tmp_path / "key").read_text()) == public
    assert key_files.public_part((tmp_path / "key.pub").read_text()) == public
    assert not key_files.is_certificate(public)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_is_for_one_key(tmp_path: Path, kind: str) -> None:
    public = made(tmp_path / "key", kind)
    other = made(tmp_path / "authority", kind)
    command = ["ssh-keygen", "-q", "-s", "authority", "-I", "me", "key.pub"]
    subprocess.run(command, check=True, timeout=60, cwd=tmp_path)
    certificate = key_files.public_part((tmp_path / "key-cert.pub").read_text())
    assert certificate and key_files.is_certificate(certificate)
    assert key_files.certifies(certificate, public)
    assert not key_files.certifies(certificate, other)
    assert not key_files.certifies(public, public)
    assert not key_files.certifies(certificate[:40], public)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 not*base64",
        "ssh-ed25519 AAAA",
        "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAA",  # says another type than it is of
        "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END",
    ],
)
def test_what_is_no_key_shows_none(text: str) -> None:
    assert key_files.public_part(text) is None
