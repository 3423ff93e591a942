"""What the kernel says since a run's start: its messages, and how often memory ran out."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import Any

_RECORD_BYTES = 8192
_MAX_RECORDS = 20000
_SPARE_S = 2.0  # between the wall clock and the kernel's own
_RECORD = re.compile(r"\d+,\d+,(\d+),[^;]*;(.*)")
_PRINTED = re.compile(r"\[ *(\d+\.\d+)\] (.*)")


def messages(since_s: float) -> dict[str, Any]:
    """The kernel's messages from that moment on (seconds since the epoch).

    Returns:
        ``{"lines": [...]}``, or with ``reason`` why they can't be read.
    """
    try:
        with open("/proc/uptime") as file:
            up_s = float(file.read().split()[0])
    except (OSError, ValueError) as error:
        return {"lines": [], "reason": f"/proc/uptime: {error}"}
    from_s = up_s - (time.time() - since_s) - _SPARE_S
    try:
        return {"lines": _from_device(from_s)}
    except OSError as error:
        reason = f"/dev/kmsg: {error.strerror}"
    try:
        done = subprocess.run(
            ["dmesg"], capture_output=True, timeout=5, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"lines": [], "reason": f"{reason}; dmesg: {error}"}
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        return {"lines": [], "reason": f"{reason}; {said}"}
    return {"lines": _printed(done.stdout.decode("utf-8", "replace"), from_s)}


def _from_device(from_s: float) -> list[str]:
    """One record a read: ``priority,sequence,microseconds,flags;message``."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines = []
    try:
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(fd, _RECORD_BYTES).decode("utf-8", "replace")
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while we read; the next read goes on behind it
            found = _RECORD.match(record)
            if found is not None and int(found[1]) / 1e6 >= from_s:
                lines.append(f"[{int(found[1]) / 1e6:12.6f}] {found[2]}")
    finally:
        os.close(fd)
    return lines


def _printed(text: str, from_s: float) -> list[str]:
    found = (_PRINTED.match(line) for line in text.splitlines())
    return [each[0] for each in found if each is not None and float(each[1]) >= from_s]


def oom_kills() -> dict[str, int | None]:
    """How many processes the kernel has killed for memory so far: on the host, in our group.

    Both can be read by everybody; what they grew by since a start is the kernel's word on it.
    """
    return {
        "host": _counter("/proc/vmstat", "oom_kill"),
        "group": _counter(f"{_group()}/memory.events", "oom_kill"),
    }


def _group() -> str:
    try:
        with open("/proc/self/cgroup") as file:
            paths = [row.rstrip("\n").partition("::")[2] for row in file if row.startswith("0::")]
    except OSError:
        paths = []
    return f"/sys/fs/cgroup{paths[0]}".rstrip("/") if paths else "/sys/fs/cgroup"


def _counter(path: str, name: str) -> int | None:
    try:
        with open(path) as file:
            for row in file:
                word, _, number = row.partition(" ")
                if word == name:
                    return int(number)
    except (OSError, ValueError):
        pass
    return None
