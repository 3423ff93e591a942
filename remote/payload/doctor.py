"""What `inv doctor` wants to know of the host beside the facts that every deploy reads."""

from __future__ import annotations

import email.parser
import json
import os
import platform
import subprocess
import time
from typing import Any

from . import facts, model_files
from .files import expand


def clock() -> dict[str, Any]:
    """The host's time; asked for by itself, so that the way there and back can be taken off."""
    return {"now": time.time()}


def whole_model(model: str, variables: dict[str, str]) -> dict[str, Any]:
    """The model's files, each safetensors file held against its own header.

    Returns:
        ``path`` (None: a name on the hub that is not in this host's cache), and ``files`` as
        `model_files.look` has them, or ``error``.
    """
    path: str | None = expand(model)
    if path is not None and not path.startswith("/"):
        path = model_files.snapshot(path, variables)
    if path is None or not os.path.exists(path):
        return {"path": path, "files": None}
    try:
        return {"path": path, "files": model_files.look(path, whole=True)}
    except OSError as error:
        return {"path": path, "files": None, "error": str(error)}


def requirements(venv: str) -> dict[str, Any]:
    """What the installed SGLang says it needs, and the version of everything that is installed."""
    site = facts.site_packages(venv)
    known = facts.distributions(site) if site else {}
    needs: list[str] = []
    if "sglang" in known:
        path = os.path.join(known["sglang"]["folder"], "METADATA")
        with open(path, encoding="utf-8", errors="replace") as file:
            needs = email.parser.HeaderParser().parse(file).get_all("Requires-Dist") or []
    installed = {}
    for entry in os.listdir(site) if site else []:
        stem, dot, ending = entry.rpartition(".")
        if dot and ending == "dist-info":
            name, _, version = stem.rpartition("-")
            installed[name.replace("_", "-").replace(".", "-").lower()] = version
    return {"requires": needs, "installed": installed, "machine": platform.machine()}


def imports(venv: str, env: dict[str, str], script: bytes, timeout_s: float) -> dict[str, Any]:
    """Import what a server imports, in the host's own interpreter and environment.

    Returns:
        ``rows`` as the script printed them, one by one; ``ended``: its exit status, None where the
        time was over; ``stderr``: the last lines.
    """
    try:
        done = subprocess.run(
            [os.path.join(venv, "bin", "python"), "-"],
            input=script,
            capture_output=True,
            timeout=timeout_s,
            env={"HOME": os.path.expanduser("~"), "LANG": "C.UTF-8", **env},
        )
        printed, said, ended = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        printed, said, ended = expired.stdout or b"", expired.stderr or b"", None
    rows = []
    for line in printed.decode("utf-8", "replace").splitlines():
        if line.startswith('{"doctor": '):
            try:
                rows.append(json.loads(line)["doctor"])
            except ValueError:
                continue  # cut off in the middle
    return {
        "rows": rows,
        "ended": ended,
        "stderr": said.decode("utf-8", "replace").strip().splitlines()[-5:],
    }
