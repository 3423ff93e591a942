"""A run's log brought here: only what is new, and through lost connections."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from remote.clock import Clock
from remote.config import HostSettings
from remote.errors import SSHError
from remote.host import Host
from remote.redial import Redial
from remote.store import LocalRun


def pull_log(
    host: Host,
    settings: HostSettings,
    run: str,
    local: LocalRun,
    clock: Clock,
    tell: Callable[[int, int], object],
) -> int:
    """Make the copy here complete; the bytes that the log had more.

    Args:
        tell: told how far the copy reaches, and the log's size.

    Raises:
        ToolError: the run has no log.
        SSHError: the connection is lost for good; a later pull goes on from there.
    """
    redial = Redial(host, clock)
    fresh = 0
    while True:
        try:
            fresh += _once(host, settings, run, local, redial, tell)
            return fresh
        except SSHError as error:
            redial.lost(error)


def _once(
    host: Host,
    settings: HostSettings,
    run: str,
    local: LocalRun,
    redial: Redial,
    tell: Callable[[int, int], object],
) -> int:
    inode, offset = local.log_position()
    fresh = 0
    with host.stream(
        "log.pull", state=settings.state, run=run, inode=inode, offset=offset
    ) as pieces:
        head = next(pieces).body
        redial.back()
        inode = int(head["inode"])
        with local.log(go_on=head["offset"] > 0) as log:
            log.reached(inode, int(head["offset"]))
            for piece in pieces:
                data = zlib.decompress(piece.data)
                log.write(data)
                log.reached(inode, int(piece.body["next"]))
                fresh += len(data)
                tell(int(piece.body["next"]), int(head["size"]))
    return fresh
