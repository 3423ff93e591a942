"""What the benchmarks of logs measure of this tool, as a process of its own.

python -m benchmarks.log_child tail|pull|follow SETTINGS RUN [FOLDER]
"""

from __future__ import annotations

import pickle  # nosec B403: from the process that started this one
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remote import logs, pulling, server
from remote.clock import SystemClock
from remote.config import HostSettings, SSHSettings
from remote.core.log_events import FatalLine
from remote.core.server_log import LogReader
from remote.host import Host
from remote.server import Follower, LinkNews
from remote.ssh import SSHHost
from remote.store import LocalRun

LINES = 200


@contextmanager
def host_of(settings_file: str) -> Iterator[tuple[SSHHost, HostSettings]]:
    """The host, not connected yet."""
    settings: HostSettings = pickle.loads(Path(settings_file).read_bytes())  # nosec B301
    host = SSHHost(settings, SSHSettings(10.0, False, 15.0, 60.0))
    try:
        yield host, settings
    finally:
        host.close()


def tail(host: Host, settings: HostSettings, run: str) -> list[str]:
    """As `inv logs --tail 200` asks it."""
    wanted = logs.Selection(tail=LINES)
    asked = logs.request(settings, run, wanted, follow=False)
    host.ahead([server.look_request(settings, run), asked])
    server.look(host, settings, run)
    clock = SystemClock()
    lines = logs.lines(
        host, settings, run, wanted, follow=False, clock=clock, tell=print, ahead=asked
    )
    return list(lines)


def follow(host: Host, settings: HostSettings, run: str, offset: int) -> None:
    """Print when a line after which the server can't serve is known, and when its end is."""
    follower = Follower(host, settings, run, SystemClock())
    follower.offset = offset
    reader = LogReader()
    for piece in follower.pieces():
        if isinstance(piece, LinkNews):
            continue
        if "log" in piece.body:
            for event in reader.feed(piece.data):
                if isinstance(event, FatalLine):
                    print("line", time.monotonic(), flush=True)
        elif "tick" in piece.body:
            print("tick", flush=True)
        elif "gone" in piece.body:
            print("gone", time.monotonic(), flush=True)


def main() -> None:
    what, settings_file, run, *more = sys.argv[1:]
    with host_of(settings_file) as (host, settings):
        if what == "tail":
            print(*tail(host, settings, run), sep="\n")
        elif what == "pull":
            local = LocalRun(Path(more[0]), run)
            pulling.pull_log(host, settings, run, local, SystemClock(), lambda done, size: None)
        else:
            follow(host, settings, run, int(more[0]))


if __name__ == "__main__":
    main()
