"""Hear of a file's growth from the kernel (inotify), and know where the kernel tells nothing."""

from __future__ import annotations

import contextlib
import os
from typing import Any

_MODIFY, _ATTRIB, _MOVED_TO, _CREATE, _MOVE_SELF = 0x2, 0x4, 0x80, 0x100, 0x800
#: Of file systems whose every write is this kernel's own (statfs(2)); on a network somebody else's
#: writes are not heard of: ext, xfs, btrfs, tmpfs, overlay, zfs, f2fs, bcachefs.
_LOCAL = frozenset(
    {
        *(0xEF53, 0x58465342, 0x9123683E, 0x01021994),
        *(0x794C7630, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E),
    }
)
#: So often growth may be found that nobody told of; a write is seen a moment before it is told.
_MISSES = 3


class Growth:
    """Tells that a file was written to, cut or replaced.

    Attributes:
        fd: to wait on beside others; None where the kernel offers nothing.
        blind: whoever wants to know has to look.
    """

    def __init__(self, path: str) -> None:
        self._path = os.fsencode(path)
        self._libc = _libc()
        self._missed = 0
        self.fd: int | None = None
        if self._libc is not None:
            fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self.fd = fd if fd >= 0 else None
        self.blind = self.fd is None or self._file_system() not in _LOCAL
        self.watch()

    def watch(self) -> None:
        """Watch what has the name now, and the folder in which another may take its place."""
        if self.fd is None:
            return
        watched = (
            (self._path, _MODIFY | _ATTRIB | _MOVE_SELF),
            (os.path.dirname(self._path), _CREATE | _MOVED_TO),
        )
        for path, events in watched:
            # The user may have used up what watches the system grants.
            self.blind |= self._libc.inotify_add_watch(self.fd, path, events) < 0

    def told(self) -> bool:
        """Whether something was told since the last call."""
        heard = False
        with contextlib.suppress(BlockingIOError):
            while self.fd is not None and os.read(self.fd, 65536):
                heard = True
        if heard:
            self._missed = 0
        return heard

    def missed(self) -> None:
        """The file was found grown, and nothing had told so."""
        self._missed += 1
        self.blind |= self._missed > _MISSES

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)

    def _file_system(self) -> int:
        import ctypes

        # struct statfs begins with its type, and is shorter than this everywhere.
        buffer = ctypes.create_string_buffer(512)
        if self._libc.statfs(self._path, buffer) != 0:
            return 0
        return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def _libc() -> Any:
    """The C library; None where Python was built without the way to it."""
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):
        return None
