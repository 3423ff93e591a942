"""The evidence of a crash or a hang: gathered on the host, scrubbed here, and one archive of it."""

from __future__ import annotations

import io
import os
import platform
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from remote.clock import Clock, Deadline
from remote.config import HostSettings
from remote.core.secret_values import values_in
from remote.errors import ToolError
from remote.host import Host
from remote.store import LocalRun

#: The folder of the evidence within a run's own, and the archive beside it.
FOLDER = "evidence"
ARCHIVE = "evidence.tar.gz"
#: What the host may take for its part, and what the whole may.
_HOST_S = 18.0
LIMIT_S = 30.0


def gather(
    host: Host,
    settings: HostSettings,
    run: str,
    local: LocalRun,
    clock: Clock,
    tell: Callable[[str], None],
) -> list[str]:
    """Bring what the host has into the run's folder; the names of the files.

    Changes nothing on the host but the tool's own cache, where py-spy may be put.
    """
    deadline = Deadline.after(clock, _HOST_S)
    kept = host.call("runs.script", state=settings.state, run=run)
    local.scrubber.learn(values_in(kept["secrets"]))
    _bring_spy(host, settings, tell)
    names = []
    limit_s = max(deadline.left_s, 1.0)
    with host.stream(
        "bundle.collect", state=settings.state, run=run, venv=settings.venv, limit_s=limit_s
    ) as pieces:
        for piece in pieces:
            name = Path(str(piece.body["name"])).name
            tell(f"evidence: {name}")
            text = piece.data.decode("utf-8", "surrogateescape")
            # These two come first: what they hold is masked in all the rest.
            if name == "launch.sh":
                local.scrubber.learn_script(text)
            elif name == "environment.txt":
                pairs = (row.split("=", 1) for row in text.splitlines() if "=" in row)
                local.scrubber.learn_variables(dict(pairs))
            keep(local, {name: text})
            names.append(name)
    return names


def keep(local: LocalRun, parts: Mapping[str, str]) -> None:
    """Put texts among the evidence, scrubbed."""
    for name, text in parts.items():
        scrubbed = local.scrubber.text(text)
        local.write(f"{FOLDER}/{name}", scrubbed.encode("utf-8", "surrogateescape"))


def pack(local: LocalRun) -> Path:
    """One archive of the evidence and the whole log, made anew."""
    archive = local.folder / ARCHIVE
    temporary = archive.with_name(f".{ARCHIVE}.{os.getpid()}.tmp")
    root = local.folder.name
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        os.fdopen(fd, "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as packed,
    ):
        for path in sorted((local.folder / FOLDER).glob("*")):
            _add(packed, f"{root}/{path.name}", path.read_bytes())
        if local.log_path.exists():
            packed.add(local.log_path, f"{root}/server.log")
    temporary.replace(archive)
    return archive


def _add(packed: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, time.time()
    packed.addfile(entry, io.BytesIO(content))


def _bring_spy(host: Host, settings: HostSettings, tell: Callable[[str], None]) -> None:
    """Put our py-spy on the host, where it has none and ours runs there."""
    beside = Path(sys.executable).with_name("py-spy")
    ours = beside if beside.exists() else shutil.which("py-spy")
    if ours is None or sys.platform != "linux":
        return
    wants = host.call("bundle.wants_spy", state=settings.state, venv=settings.venv)
    if wants["wanted"] and wants["machine"] == platform.machine():
        tell("bringing py-spy")
        packed = zlib.compress(Path(ours).read_bytes(), 6)
        with suppress(ToolError):  # a full disk: what /proc says must do
            host.call("bundle.bring_spy", data=packed, state=settings.state)
