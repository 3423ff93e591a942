"""The commit that a checkout stands at, read from its files: git itself may not be there."""

from __future__ import annotations

import os
import re

_COMMIT = re.compile(r"[0-9a-f]{40,64}\Z")
#: An editable install may begin this far below its checkout's root.
_UP = 3


def commit(folder: str) -> str | None:
    """The last commit of the checkout that a folder lies in; edits since then don't show in it.

    Returns:
        None where the folder lies in no checkout, or git keeps its refs in a way not known here.
    """
    for _ in range(_UP):
        git = _git_folder(os.path.join(folder, ".git"))
        if git is not None:
            return _head(git)
        folder = os.path.dirname(folder)
    return None


def _git_folder(path: str) -> str | None:
    if os.path.isdir(path):
        return path
    pointer = _read(path)  # of a worktree or a submodule
    if not pointer.startswith("gitdir: "):
        return None
    return os.path.join(os.path.dirname(path), pointer[len("gitdir: ") :])


def _head(git: str) -> str | None:
    head = _read(os.path.join(git, "HEAD"))
    if not head.startswith("ref: "):
        return _checked(head)
    ref = head[len("ref: ") :]
    common = _read(os.path.join(git, "commondir"))
    homes = [git, os.path.join(git, common)] if common else [git]
    for home in homes:
        found = _checked(_read(os.path.join(home, ref)))
        if found is not None:
            return found
        for line in _read(os.path.join(home, "packed-refs")).splitlines():
            if line.endswith(f" {ref}"):
                return _checked(line.partition(" ")[0])
    return None


def _checked(text: str) -> str | None:
    return text if _COMMIT.match(text) else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
