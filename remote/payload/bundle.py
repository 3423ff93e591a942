"""Everything on the host that tells of a crash or a hang, gathered before anything is killed."""

from __future__ import annotations

import functools
import glob
import os
import platform
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from . import evidence, facts, gpus, kernel, procs, ranks, runs
from .files import expand, private_dir, state_dir, write

_MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_THREADS = 200
_SPY_S = 8.0
_SMI_S = 10.0
_SHM_ENTRIES = 200


def collect(
    state: str, run: str, venv: str, limit_s: float
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The evidence, one ``{"name": file}`` with its bytes at a time; what matters most comes first.

    The processes' own files come only while there are any: an earlier bundle keeps its own.

    Args:
        limit_s: what would come later is left out, and ``incomplete.txt`` names it.
    """
    until = time.monotonic() + limit_s
    started = runs.record(state, run)
    home = runs.folder(state, run)
    alive = procs.members(run)
    server = runs.server_process(state, run)
    roster = ranks.roster(alive, server.pid if server else None)
    names = {process.pid: name.replace(" ", "-") for name, process in roster.items()}
    parts: list[tuple[str, Callable[[], str]]] = []
    for name in ("launch.sh", "run.json", "outcome.json", "exit_status"):
        if os.path.exists(os.path.join(home, name)):
            parts.append((name, functools.partial(_read, os.path.join(home, name))))
    if alive:
        first = server or alive[0]
        parts.append(("environment.txt", lambda: _environment(first.pid)))
        parts.append(("processes.txt", lambda: _table(alive, names)))
    for name, part in parts:
        yield {"name": name}, _bytes(part)
    yield from _stacks(alive, names, find_spy(state, venv))
    parts = [
        (
            f"proc-{names.get(process.pid, 'other')}-{process.pid}.txt",
            functools.partial(_process, process.pid),
        )
        for process in alive
    ]
    parts += [
        ("kernel.txt", lambda: _kernel(float(started["started_at"]))),
        (
            "disks.txt",
            lambda: _disks(evidence.writes_to(state, run, server.pid if server else None)),
        ),
        ("versions.txt", lambda: _versions(venv)),
        ("nvidia-smi.txt", _nvidia_smi),
    ]
    late = []
    for name, part in parts:
        if time.monotonic() > until:
            late.append(name)
        else:
            yield {"name": name}, _bytes(part)
    if late:
        said = f"not read within {limit_s:.0f} s:\n" + "\n".join(late) + "\n"
        yield {"name": "incomplete.txt"}, said.encode()


def find_spy(state: str, venv: str) -> str | None:
    """A py-spy on this host: the venv's, one on PATH, or one that was brought here."""
    places = [os.path.join(venv, "bin"), "/usr/local/bin", "/usr/bin", _cache(state)]
    found = (os.path.join(place, "py-spy") for place in places)
    return next((path for path in found if os.access(path, os.X_OK)), None)


def wants_spy(state: str, venv: str) -> dict[str, Any]:
    """Whether a py-spy would help, and for which machine."""
    return {"wanted": find_spy(state, venv) is None, "machine": platform.machine()}


def bring_spy(state: str, packed: bytes) -> dict[str, Any]:
    """Keep a py-spy, sent compressed (zlib), in the tool's own folder."""
    state_dir(state)
    path = os.path.join(private_dir(_cache(state)), "py-spy")
    write(path, zlib.decompress(packed), mode=0o700)
    return {}


def _cache(state: str) -> str:
    return os.path.join(expand(state), "cache")


def _bytes(part: Callable[[], str]) -> bytes:
    try:
        text = part()
    except Exception as error:  # one part that fails must not cost the others
        text = f"could not be read: {error!r}\n"
    return text.encode("utf-8", "surrogateescape")[:_MAX_FILE_BYTES]


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read(_MAX_FILE_BYTES)


def _environment(pid: int) -> str:
    return "".join(f"{name}={value}\n" for name, value in sorted(procs.environment(pid).items()))


def _table(alive: list[procs.Process], names: dict[int, str]) -> str:
    hertz = os.sysconf("SC_CLK_TCK")
    rows = ["pid\tparent\tstate\tcpu_s\tresident_mib\tthreads\twaits_in\trank\tcommand"]
    for process in alive:
        pid = process.pid
        threads = len(os.listdir(f"/proc/{pid}/task")) if os.path.exists(f"/proc/{pid}") else 0
        rows.append(
            f"{pid}\t{process.parent}\t{process.state}\t{process.cpu_ticks / hertz:.1f}"
            f"\t{procs.memory_bytes(pid) >> 20}\t{threads}\t{_field(pid, 'wchan')}"
            f"\t{names.get(pid, '')}\t{' '.join(procs.command_line(pid))}"
        )
    for child in ranks.dead_children(alive):
        rows.append(f"{child['pid']}\t\tZ\t\t\t\t\t\t{child['name']}, ended with {child['exit']}")
    return "\n".join(rows) + "\n"


def _field(pid: int, name: str, thread: str | None = None) -> str:
    where = f"/proc/{pid}/{name}" if thread is None else f"/proc/{pid}/task/{thread}/{name}"
    try:
        return _read(where).strip()
    except OSError as error:
        return f"({error.strerror})"


def _process(pid: int) -> str:
    """What /proc says: status, and of each thread its name, state and place in the kernel."""
    rows = [_field(pid, "status"), "", f"limits:\n{_field(pid, 'limits')}", "", "threads:"]
    for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:_MAX_THREADS]:
        status = _field(pid, "stat", thread).rpartition(")")[2].split()
        stack = _field(pid, "stack", thread)
        rows.append(
            f"{thread}\t{_field(pid, 'comm', thread)}\tstate {status[0] if status else '?'}"
            f"\twaits in {_field(pid, 'wchan', thread)}"
            f"\tsystem call {_field(pid, 'syscall', thread).partition(' ')[0]}"
        )
        if stack and not stack.startswith("("):
            rows += [f"    {line}" for line in stack.splitlines()]
    return "\n".join(rows) + "\n"


def _stacks(
    alive: list[procs.Process], names: dict[int, str], spy: str | None
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The Python stack of every rank, all asked at once."""
    ranked = [process for process in alive if process.pid in names]
    if not ranked:
        return
    if spy is None:
        said = b"no py-spy in the venv, on PATH or brought along: see the files proc-*.txt\n"
        yield {"name": "stacks.txt"}, said
        return
    taken: dict[int, str] = {}

    def dump(process: procs.Process) -> None:
        # A stopped process can't be made to stop once more: it is read as it stands.
        mode = ["--nonblocking"] if process.state == "T" else []
        try:
            done = subprocess.run(
                [spy, "dump", *mode, "--pid", str(process.pid)],
                capture_output=True,
                timeout=_SPY_S,
                stdin=subprocess.DEVNULL,
            )
            taken[process.pid] = (done.stdout + done.stderr).decode("utf-8", "replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            taken[process.pid] = f"py-spy gave no stack: {error}\n"

    threads = [threading.Thread(target=dump, args=(p,), daemon=True) for p in ranked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SPY_S + 2)
    for process in ranked:
        text = taken.get(process.pid, "py-spy did not end\n")
        yield {"name": f"stack-{names[process.pid]}-{process.pid}.txt"}, text.encode()


def _kernel(since_s: float) -> str:
    told = kernel.messages(since_s)
    if "reason" in told:
        return f"the kernel's messages can't be read: {told['reason']}\n"
    return "".join(f"{line}\n" for line in told["lines"]) or "nothing since the start\n"


def _disks(paths: list[str]) -> str:
    rows = ["mount\tsize_mib\tfree_mib\tfull"]
    rows += [
        f"{disk['mount']}\t{disk['size_bytes'] >> 20}\t{disk['free_bytes'] >> 20}\t{disk['full']}"
        for disk in evidence.disks(paths)
    ]
    rows += ["", "/dev/shm:"]
    with os.scandir("/dev/shm") as entries:
        listed = sorted(
            (entry.stat(follow_symlinks=False).st_size, entry.name) for entry in entries
        )
    rows += [f"{size}\t{name}" for size, name in listed[::-1][:_SHM_ENTRIES]]
    return "\n".join(rows) + "\n"


def _versions(venv: str) -> str:
    """The interpreter and every distribution of the venv."""
    site = facts.site_packages(venv)
    rows = [f"python {platform.python_version()}", f"kernel {platform.release()}"]
    for info in sorted(glob.glob(os.path.join(glob.escape(site or ""), "*.dist-info"))):
        rows.append(os.path.basename(info)[: -len(".dist-info")].replace("-", " ", 1))
    return "\n".join(rows) + "\n"


def _nvidia_smi() -> str:
    program = gpus.program()
    if program is None:
        return "no nvidia-smi on this host\n"
    done = subprocess.run(
        [program, "-q"], capture_output=True, timeout=_SMI_S, stdin=subprocess.DEVNULL
    )
    return (done.stdout + done.stderr).decode("utf-8", "replace")
