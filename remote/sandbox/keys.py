"""The sandbox's own keys: one for the host, one for the only client it lets in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from remote.sandbox.layout import PRIVATE_FILE, PRIVATE_FOLDER, Layout

if TYPE_CHECKING:
    import asyncssh

KEY_TYPE = "ssh-ed25519"


def have_keys(layout: Layout) -> bool:
    """Whether both key pairs are there, readable by their owner alone."""
    pairs = (layout.host_key, layout.client_key)
    return all(
        path.is_file() and public(path).is_file() and path.stat().st_mode & 0o077 == 0
        for path in pairs
    )


def make_keys(layout: Layout) -> None:
    """Make the key pairs that are missing, and close the folder to everyone else."""
    layout.ssh.mkdir(parents=True, exist_ok=True)
    layout.ssh.chmod(PRIVATE_FOLDER)
    for path, comment in ((layout.host_key, "sandbox host"), (layout.client_key, "sandbox client")):
        if not (path.is_file() and public(path).is_file()):
            _make_pair(path, comment)
        path.chmod(PRIVATE_FILE)


def public(private: Path) -> Path:
    """The public half's file, named as ssh-keygen does."""
    return private.with_name(private.name + ".pub")


def write_private(path: Path, data: bytes) -> None:
    """Put a file in place whole, never readable by others in between."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    beside.replace(path)


def known_hosts_line(port: int, public_key: str) -> str:
    """The ``known_hosts`` line for a loopback port.

    Args:
        public_key: ``TYPE BASE64 [comment]``, as in a ``.pub`` file.
    """
    kind, key = public_key.split()[:2]
    return f"[127.0.0.1]:{port} {kind} {key}\n"


def _make_pair(path: Path, comment: str) -> None:
    import asyncssh  # 150 ms, needed once in a sandbox's life

    key: asyncssh.SSHKey = asyncssh.generate_private_key(KEY_TYPE, comment=comment)
    write_private(path, key.export_private_key())
    write_private(public(path), key.export_public_key())
