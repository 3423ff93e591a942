"""Processes of the host, read from /proc; a pid counts only together with its start time."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterator
from typing import NamedTuple

#: Every process of a run carries this variable; it is how they are found again, in or out of the
#: process group, re-parented or not.
RUN_VARIABLE = "SGLANG_REMOTE_RUN"


class Process(NamedTuple):
    """One process; ``start`` is in clock ticks since boot and tells it from a later namesake.

    ``name`` is the kernel's for it, 15 bytes at most.
    """

    pid: int
    start: int
    state: str
    parent: int
    cpu_ticks: int
    name: str = ""
    memory_pages: int = 0

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def boot_id() -> str:
    """Changes at each boot of the host."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _bytes(pid: int, name: str) -> bytes:
    # Without a file object, which costs more than the look itself: a follow looks for days.
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = b""
        while chunk := os.read(fd, 65536):
            found += chunk
        return found
    except OSError:
        return b""
    finally:
        os.close(fd)


def _stat(pid: int) -> tuple[bytes, list[bytes]]:
    """What /proc/PID/stat says, from the state on, behind the pid and the command's name."""
    # The name may hold spaces and brackets: the fields begin after the last bracket.
    head, _, tail = _bytes(pid, "stat").rpartition(b")")
    return head, tail.split()


def find(pid: int) -> Process | None:
    """The process of that pid, zombies included."""
    head, fields = _stat(pid)
    if len(fields) < 22:
        return None
    return Process(
        pid=pid,
        start=int(fields[19]),
        state=fields[0].decode(),
        parent=int(fields[1]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        name=head.partition(b"(")[2].decode("utf-8", "replace"),
        memory_pages=int(fields[21]),
    )


def name(pid: int) -> str:
    """The kernel's name for it, 15 bytes at most; a zombie still has one."""
    return _bytes(pid, "comm").decode("utf-8", "replace").strip()


#: Of the flags in /proc/PID/stat: it has begun to end.
_EXITING = 0x4


def ending(pid: int) -> bool:
    """Whether it has begun to end, or has ended.

    One that holds much (a GPU's memory, say) closes its connections long before it is a zombie.
    """
    _, fields = _stat(pid)
    return len(fields) < 7 or fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _EXITING)


def exit_status(pid: int) -> int | None:
    """How one that ends or has ended does: its status, negative for a signal; None where that isn't
    shown.
    """
    _, fields = _stat(pid)
    return os.waitstatus_to_exitcode(int(fields[49])) if len(fields) > 49 else None


def memory_bytes(pid: int) -> int:
    """Its resident memory; 0 where it is gone."""
    fields = _bytes(pid, "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def same(pid: int, start: int) -> bool:
    """Whether the process that had this pid and start time still runs."""
    found = find(pid)
    return found is not None and found.start == start and found.alive


def pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def run_of(pid: int) -> str | None:
    """The run that a process belongs to, by its environment."""
    return mark_of(pid, RUN_VARIABLE)


def mark_of(pid: int, variable: str) -> str | None:
    """What a variable of a process's environment says; None where it has none of that name."""
    wanted = f"{variable}=".encode()
    for entry in _bytes(pid, "environ").split(b"\0"):
        if entry.startswith(wanted):
            return entry[len(wanted) :].decode("utf-8", "replace")
    return None


def of_this_user(pid: int) -> bool:
    """Whether the process is there and this user's own."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with."""
    entries = _bytes(pid, "environ").decode("utf-8", "replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def by_run() -> dict[str, list[Process]]:
    """The living processes of every run, oldest first, from one walk through /proc."""
    found: dict[str, list[Process]] = {}
    for pid in pids():
        run = run_of(pid)
        process = find(pid) if run is not None else None
        if run is not None and process is not None and process.alive:
            found.setdefault(run, []).append(process)
    for processes in found.values():
        processes.sort(key=lambda process: (process.start, process.pid))
    return found


def members(run: str) -> list[Process]:
    """The living processes of one run."""
    return by_run().get(run, [])


def marked(variable: str, value: str) -> list[Process]:
    """The living processes whose environment has that variable with that value."""
    found = [
        process for pid in pids() if mark_of(pid, variable) == value and (process := find(pid))
    ]
    return [process for process in found if process.alive]


def command_line(pid: int) -> list[str]:
    """The words of its command line; after setproctitle, the title as one word."""
    words = _bytes(pid, "cmdline").rstrip(b"\0 ").split(b"\0")
    return [word.decode("utf-8", "replace") for word in words if word]


def title(process: Process) -> str:
    """The first word of its command line."""
    return (command_line(process.pid) or [""])[0]


def owner(pid: int) -> str:
    """The user's name, or the uid where it has none."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def send(process: Process, number: int) -> bool:
    """Signal exactly that process, through a pidfd and after a second look; False: it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not same(process.pid, process.start):
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = file.readlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            listens = fields[3] == "0A"
            if listens and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def listeners(port: int) -> tuple[bool, list[int]]:
    """Whether somebody listens on the TCP port, and the pids seen holding the socket.

    The pids may be missing although the port is taken: another user's descriptors are not shown.
    """
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return False, []
    holders = []
    for pid in pids():
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") in wanted:
                    holders.append(pid)
                    break
        except OSError:
            continue
    return True, sorted(holders)


def describe(pid: int) -> dict[str, object]:
    """What a person needs to know a process: pid, owner, command line, its run if it has one."""
    process = find(pid)
    return {
        "pid": pid,
        "start": process.start if process else None,
        "owner": owner(pid),
        "command": command_line(pid),
        "run": run_of(pid),
    }
