"""Is an installed distribution what its wheel, or its checkout's last commit, says it is?"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from . import files, patches

#: The names of what patch sets bring into site-packages begin with this.
OURS = "sglang_remote_"


def differences(site: str, folder: str, editable: str | None) -> dict[str, Any]:
    """What differs, and how it was looked for.

    Args:
        folder: the distribution's metadata folder.
        editable: the source of an editable install, asked by git instead of by RECORD.

    Returns:
        ``checked`` (files whose hash was compared, None where git was asked), ``different`` (paths,
        or git's status lines), ``leftovers`` (files of patch sets that still stand there).
    """
    leftovers = sorted(
        entry.path for entry in os.scandir(site) if entry.name.startswith(OURS) and entry.is_file()
    )
    if editable:
        status = _git_status(editable)
        return {"checked": None, "different": status, "leftovers": leftovers}
    checked = 0
    different = []
    for name, digest in patches.record(os.path.join(folder, "RECORD")):
        path = os.path.join(site, name)
        if not digest or name.endswith(".pyc"):
            continue
        found = files.read(path)
        checked += 1
        if found is None or found.sha256 != patches.in_hex(digest):
            different.append(path)
    return {"checked": checked, "different": different, "leftovers": leftovers}


def _git_status(source: str) -> list[str]:
    done = subprocess.run(
        ["git", "-C", source, "status", "--porcelain"],
        capture_output=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        return [f"git does not answer: {done.stderr.decode('utf-8', 'replace').strip()}"]
    return done.stdout.decode("utf-8", "replace").splitlines()
