"""ssh_config where there is no OpenSSH to read it: the user's file, then the system's."""

from __future__ import annotations

import getpass
import glob
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from remote.core.ssh_config import BadConfig, expanded

_SYSTEM = Path("/etc/ssh/ssh_config")
_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ed25519")


def looked_up(alias: str, config: str | None) -> str:
    """What `ssh -G` would print for a host, of the settings that we know.

    Args:
        config: the file to read, ``none`` for no file, or None for the user's and the system's.

    Raises:
        BadConfig: what they say makes no sense, or can't be read.
    """
    # Who dials early imports this module, and must not wait for Paramiko.
    import paramiko

    try:
        known = paramiko.SSHConfig.from_text("\n".join(_texts(config)))
        options = known.lookup(alias)
        found: dict[str, Any] = {"hostname": alias, "user": getpass.getuser(), **options}
    except (paramiko.SSHException, OSError, LookupError, RuntimeError, ValueError) as error:
        raise BadConfig(str(error) or type(error).__name__) from error
    found.setdefault("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    found.setdefault("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
    found.setdefault("identityfile", [f"~/.ssh/{name}" for name in _IDENTITIES])
    lines = []
    for keyword, value in found.items():
        values: list[str] = value if isinstance(value, list) else [value]
        lines += [f"{keyword} {each}" for each in values]
    return "\n".join(lines)


def _texts(config: str | None) -> Iterator[str]:
    folder = Path("~/.ssh").expanduser()
    if config is None:
        if (users := folder / "config").exists():
            yield _Files(folder, guarded=True).text(users)
        if _SYSTEM.exists():
            yield _Files(_SYSTEM.parent, guarded=False).text(_SYSTEM)
    elif config != "none":
        yield _Files(folder, guarded=False).text(Path(config).expanduser())


class _Files:
    """Files that include each other.

    Args:
        folder: what relative names start from.
        guarded: as OpenSSH does, refuse a file that somebody else may write to: it names commands.
    """

    def __init__(self, folder: Path, *, guarded: bool) -> None:
        self._folder = folder
        self._guarded = guarded

    def text(self, path: Path) -> str:
        return expanded(self._read(path), self._named)

    def _named(self, words: list[str]) -> Iterable[str]:
        for word in words:
            pattern = self._folder / Path(word).expanduser()
            # Unlike pathlib's, and like OpenSSH's, its ``*`` passes over hidden files.
            for name in sorted(glob.glob(str(pattern))):  # noqa: PTH207
                yield self._read(Path(name))

    def _read(self, path: Path) -> str:
        with path.open("r", encoding="utf-8", errors="surrogateescape") as file:
            kept = os.fstat(file.fileno())
            if self._guarded and (
                kept.st_uid not in (0, os.getuid()) or kept.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            ):
                raise BadConfig(f"bad owner or permissions on {path}")
            return file.read()
