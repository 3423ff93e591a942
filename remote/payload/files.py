"""Files on the host: written atomically, owner and mode kept, symbolic links not followed."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from typing import NamedTuple

from .refusal import Refused


class Found(NamedTuple):
    """A regular file as it is now."""

    content: bytes
    mode: int
    uid: int
    gid: int

    @property
    def sha256(self) -> str:
        return sha256(self.content)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def expand(path: str) -> str:
    """The path with a leading ``~`` made the user's home."""
    return os.path.expanduser(path)


def private_dir(path: str) -> str:
    """The folder, made 0700 where it was missing.

    Raises:
        Refused: it is a link, belongs to somebody else, or others may write to it.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Refused("ToolError", f"{path} is not a folder", hint="move it away")
    if found.st_uid != os.geteuid():
        raise Refused("ToolError", f"{path} belongs to uid {found.st_uid}, not to this user")
    if found.st_mode & 0o022:
        raise Refused(
            "ToolError",
            f"others may write to {path} (mode {stat.S_IMODE(found.st_mode):o})",
            hint=f"chmod go-w {path}",
        )
    return path


#: In the state folder: the uppermost of the folders that were made for it.
MADE = "made"


def state_dir(state: str) -> str:
    """The tool's own folder, made where it was missing; what was made above it is written down.

    Raises:
        Refused: see `private_dir`.
    """
    path = top = expand(state)
    there = os.path.lexists(path)
    while not os.path.lexists(os.path.dirname(top)):
        top = os.path.dirname(top)
    private_dir(path)
    if not there and top != path:
        write(os.path.join(path, MADE), os.fsencode(top))
    return path


def made_above(path: str) -> list[str]:
    """The folders that were made for this one, itself left out, the lowest first."""
    found = read(os.path.join(path, MADE))
    top = os.fsdecode(found.content) if found is not None else path
    above = []
    while path != top and path.startswith(top):
        path = os.path.dirname(path)
        above.append(path)
    return above


def read(path: str) -> Found | None:
    """The file, or None where there is none.

    Raises:
        Refused: something else than a regular file stands there.
    """
    try:
        # Without O_NONBLOCK a pipe would keep us waiting for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Refused("ToolError", f"cannot read {path}: {error.strerror}") from error
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise Refused("ToolError", f"{path} is not a regular file")
    with os.fdopen(fd, "rb") as file:
        return Found(file.read(), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)


def write(
    path: str, content: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Put the content there in one step: a reader sees the old file or the new one, whole.

    Raises:
        OSError: no room, no permission; the old file stands.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    sync_dir(folder)


def remove(path: str) -> None:
    """Take the file away, if it is there."""
    if os.path.lexists(path):
        os.unlink(path)
        sync_dir(os.path.dirname(path))


def remove_leftovers(path: str) -> None:
    """Take away what a `write` that was killed left beside the file."""
    folder, name = os.path.split(glob.escape(path))
    for temporary in glob.glob(os.path.join(folder, f".{name}.*.tmp")):
        os.unlink(temporary)


def sync_dir(folder: str) -> None:
    """Make a rename or removal in the folder last through a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
