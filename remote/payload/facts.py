"""Everything a deploy needs to know of the host, read in one go."""

from __future__ import annotations

import getpass
import glob
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from . import bench_folder, cache, checkout, gpus, model_files, procs, resources, runs
from .files import expand, sha256
from .refusal import Refused

_DISTRIBUTIONS = (
    "torch",
    "sglang",
    "flashinfer-python",
    "sgl-kernel",
    "sglang-kernel",
    "transformers",
    "triton",
    "apache-tvm-ffi",
    "py-spy",
)


def read(
    venv: str,
    cuda_home: str,
    state: str,
    model: str,
    port: int,
    recent: int = 20,
    ask_gpus: bool = True,
    variables: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The host as it is now; what could not be read says why.

    Args:
        variables: the server's own, which may move its caches.
        ask_gpus: False where nvidia-smi may wait for a sick driver.
    """
    state = expand(state)
    site = site_packages(venv)
    told = gpus.ask() if ask_gpus else {"reason": "not asked"}
    installed = distributions(site) if site else {}
    known = _runs(state, recent)
    return {
        "hostname": socket.gethostname(),
        "user": getpass.getuser(),
        "home": os.path.expanduser("~"),
        "kernel": platform.release(),
        "boot_id": procs.boot_id(),
        "now": time.time(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": {
            "path": os.path.join(venv, "bin", "python"),
            "real": os.path.realpath(sys.executable),
            "version": platform.python_version(),
        },
        "site_packages": site,
        "distributions": installed,
        "roots": roots(site, installed) if site else [],
        "identity": identity(venv, site, installed),
        "cuda": {
            "home": cuda_home,
            "nvcc": os.access(os.path.join(cuda_home, "bin/nvcc"), os.X_OK),
            "version": _cuda_version(cuda_home),
        },
        "gpus": told,
        "gpu_holders": gpu_holders(told.get("apps", "")),
        "port": port_owner(port),
        "disk": {"state": _free_bytes(state), "shm": _free_bytes("/dev/shm")},
        "caches": resources.caches(variables or {}),
        "limits": resources.limits(),
        "shared_memory": resources.shared_memory(),
        "state_folder": resources.state_folder(state),
        "model": _model(model),
        "runs": known,
        "strays": _strays(state),
        "measured": {
            found["run"]: who
            for found in known
            if found["pids"] and (who := bench_folder.measured_by(state, found["run"])) is not None
        },
    }


def _runs(state: str, recent: int) -> list[dict[str, Any]]:
    """The newest runs, and every older one of which something still lives."""
    living = procs.by_run()
    known = runs.ids(state)
    shown = [run for run in known[:-recent] if run in living] + known[-recent:]
    found = []
    for run in shown:
        try:
            found.append(runs.look(state, run, living))
        except Refused:
            continue  # killed while its folder was made: it has no record and started nothing
    return found


def _strays(state: str) -> dict[str, list[int]]:
    """The processes of runs that this state folder doesn't know, by run.

    They belong to another one, or this one was moved away or emptied under them.
    """
    known = set(runs.ids(state))
    return {
        run: [process.pid for process in found]
        for run, found in sorted(procs.by_run().items())
        if run not in known and procs.of_this_user(found[0].pid)
    }


def site_packages(venv: str) -> str | None:
    """The venv's folder of packages."""
    found = glob.glob(os.path.join(glob.escape(venv), "lib", "python3.*", "site-packages"))
    return sorted(found)[-1] if found else None


def distributions(site: str) -> dict[str, dict[str, Any]]:
    """Version, metadata folder, source where it is editable, and the commit of what came from git;
    by distribution.
    """
    wanted = {name.replace("-", "_").lower(): name for name in _DISTRIBUTIONS}
    found: dict[str, dict[str, Any]] = {}
    for entry in os.scandir(site):
        stem, dot, ending = entry.name.rpartition(".")
        if not dot or ending != "dist-info":
            continue
        name = wanted.get(stem.rpartition("-")[0].replace("-", "_").replace(".", "_").lower())
        if name is None:
            continue
        found[name] = {
            "version": _version(entry.path) or stem.rpartition("-")[2],
            "folder": entry.path,
            "editable": _editable(entry.path),
            "commit": _commit(entry.path),
        }
    return found


def roots(site: str, installed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where an installed file may lie: site-packages, then editable sources.

    A diff made in a checkout may begin at its root or at the folder that is installed from it.

    Args:
        installed: what `distributions` finds there.
    """
    sources = [found["editable"] for found in installed.values() if found["editable"]]
    return [site, *(root for source in sources for root in (source, source.rpartition("/")[0]))]


def _commit(folder: str) -> str | None:
    source = _editable(folder)
    if source is not None:
        return checkout.commit(source)
    commit = direct_url(folder).get("vcs_info", {}).get("commit_id")
    return None if commit is None else str(commit)


def _cuda_version(home: str) -> str | None:
    """As the toolkit's own file has it."""
    try:
        with open(os.path.join(home, "version.json"), encoding="utf-8") as file:
            return str(json.load(file)["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _version(folder: str) -> str | None:
    try:
        with open(os.path.join(folder, "METADATA"), encoding="utf-8", errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:  # the headers end with an empty line
                    return None
                if name.lower() == "version":
                    return value.strip()
    except OSError:
        pass
    return None


def direct_url(folder: str) -> dict[str, Any]:
    """What pip noted of a distribution that came from no index; empty where it came from one.

    Args:
        folder: the distribution's metadata folder.
    """
    try:
        with open(os.path.join(folder, "direct_url.json"), encoding="utf-8") as file:
            note: dict[str, Any] = json.load(file)
            return note
    except (OSError, ValueError):
        return {}


def _editable(folder: str) -> str | None:
    note = direct_url(folder)
    url = str(note.get("url", ""))
    if note.get("dir_info", {}).get("editable") and url.startswith("file://"):
        return url[len("file://") :]
    return None


def identity(
    venv: str, site: str | None, installed: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """A hash that changes when what is installed in the venv changes.

    Of the interpreter, and each distribution's RECORD by size and time. An editable SGLang adds
    the file that its parser stands in.
    """
    digest = hashlib.sha256(os.path.realpath(sys.executable).encode() + sys.version.encode())
    if site:
        for record in sorted(glob.glob(os.path.join(glob.escape(site), "*.dist-info", "RECORD"))):
            digest.update(_stamp(record))
        known = distributions(site) if installed is None else installed
        editable = known.get("sglang", {}).get("editable")
        if editable:
            for name in ("python/sglang/srt/server_args.py", "sglang/srt/server_args.py"):
                path = os.path.join(editable, name)
                if os.path.exists(path):
                    digest.update(_stamp(path))
    return digest.hexdigest()


def _stamp(path: str) -> bytes:
    info = os.stat(path)
    return f"{path} {info.st_size} {info.st_mtime_ns}".encode()


def python() -> dict[str, Any]:
    """The interpreter that answers."""
    return {"path": sys.executable}


def who_listens(port: int) -> dict[str, Any]:
    """`port_owner` as an answer."""
    return {"owner": port_owner(port)}


def port_owner(port: int) -> dict[str, Any] | None:
    """Who listens on the port: None where nobody does, pid 0 where it can't be seen."""
    taken, holders = procs.listeners(port)
    if not taken:
        return None
    return (
        procs.describe(holders[0])
        if holders
        else {"pid": 0, "owner": "?", "command": [], "run": None}
    )


def gpu_holders(apps: str) -> dict[str, dict[str, Any]]:
    """Who the processes of nvidia-smi's table are, by pid; one that can't be seen is left out."""
    pids = {fields[1] for row in apps.splitlines() if len(fields := row.split(", ")) == 3}
    return {
        pid: procs.describe(int(pid))
        for pid in sorted(pids)
        if pid.isdigit() and os.path.exists(f"/proc/{pid}")
    }


def _free_bytes(path: str) -> int | None:
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        info = os.statvfs(path or "/")
    except OSError:
        return None
    return info.f_bavail * info.f_frsize


def _model(model: str) -> dict[str, Any]:
    path = expand(model)
    if not path.startswith("/"):
        return {"path": path, "local": False, "exists": None, "files": None}
    there = os.path.exists(path)
    try:
        found = model_files.look(path) if there else None
    except OSError:
        found = None
    return {"path": path, "local": True, "exists": there, "files": found}


def parser(
    venv: str, state: str, env: dict[str, str], script: bytes, timeout_s: float = 180
) -> dict[str, Any]:
    """The flags that the installed SGLang's own parser takes, kept on the host by `identity`.

    Importing SGLang takes seconds to minutes, so the answer is cached under the state folder.
    """
    key = identity(venv, site_packages(venv)) + sha256(script)
    known = cache.load(state, "parser", key)
    if known is not None:
        return {"parser": known}
    try:
        done = subprocess.run(
            [os.path.join(venv, "bin", "python"), "-", "--json"],
            input=script,
            capture_output=True,
            timeout=timeout_s,
            env={"HOME": os.path.expanduser("~"), "LANG": "C.UTF-8", **env},
        )
    except subprocess.TimeoutExpired as expired:
        tail = (expired.stderr or b"").decode("utf-8", "replace").splitlines()[-10:]
        return {"error": f"no answer in {timeout_s:.0f} s", "evidence": tail}
    text = done.stdout.decode("utf-8", "replace").strip()
    try:
        answer = json.loads(text.splitlines()[-1]) if text else {}
    except ValueError:
        answer = {}
    if not answer.get("flags"):
        tail = done.stderr.decode("utf-8", "replace").strip().splitlines()[-10:]
        return {
            "error": str(answer.get("error") or f"exit status {done.returncode}"),
            "evidence": tail,
        }
    cache.keep(state, "parser", key, answer)
    return {"parser": answer}
