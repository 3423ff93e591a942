"""A run's log brought here: only what is new, and through lost connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from remote import decoding
from remote.clock import Clock
from remote.config import HostSettings
from remote.errors import SSHError
from remote.host import Host, Request
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
            for count in _pieces(host, settings, run, local, redial, tell):
                fresh += count
            return fresh
        except SSHError as error:
            redial.lost(error)


def request(settings: HostSettings, run: str, local: LocalRun) -> Request:
    """What `pull_log` asks first."""
    inode, offset = local.log_position()
    params = {
        "state": settings.state,
        "run": run,
        "inode": inode,
        "offset": offset,
        "reads": decoding.readable(),
    }
    return Request("log.pull", params)


def _pieces(
    host: Host,
    settings: HostSettings,
    run: str,
    local: LocalRun,
    redial: Redial,
    tell: Callable[[int, int], object],
) -> Iterator[int]:
    """Write what is new, piece by piece; the length of each.

    Where the copy reaches is counted in what was decoded and written: what a cut leaves in the
    decoder comes again.
    """
    with request(settings, run, local).streamed(host) as pieces:
        head = next(pieces).body
        redial.back()
        inode, offset, size = int(head["inode"]), int(head["offset"]), int(head["size"])
        with local.log(go_on=offset > 0) as log:
            log.reached(inode, offset)
            for data in decoding.decoded(head["coding"], (piece.data for piece in pieces)):
                log.write(data)
                offset += len(data)
                log.reached(inode, offset)
                tell(offset, size)
                yield len(data)
