"""The host's lock as a client takes it: one task at a time, under its name."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from remote.config import HostSettings
from remote.errors import SSHError
from remote.host import Host, Request


def whoami() -> dict[str, str]:
    """Who runs this task, for a lock or a record."""
    return {"user": getpass.getuser(), "client": socket.gethostname()}


def lock_request(settings: HostSettings, task: str, message: str = "") -> Request:
    """What `take_lock` asks."""
    who = {"task": task, "message": message, **whoami()}
    return Request("lock.take", {"state": settings.state, "who": who})


def take_lock(host: Host, settings: HostSettings, task: str, message: str = "") -> str | None:
    """Take the host's lock under this task's name.

    Returns:
        Who had it before and is gone without having given it back, in words.

    Raises:
        Locked: another task holds it.
    """
    answer = lock_request(settings, task, message).of(host)
    return None if answer["abandoned"] is None else str(answer["abandoned"])


#: What gives the host's lock back.
RELEASE = Request("lock.release", {})


@contextmanager
def releasing_lock(host: Host) -> Iterator[None]:
    """Give the host's lock back at the end of the block, however that ends."""
    try:
        yield
    except KeyboardInterrupt:
        # To ask for the release would wait for the call that was interrupted; the lock also ends
        # with the connection.
        host.close()
        raise
    except SSHError:
        raise
    except BaseException:
        RELEASE.of(host)
        raise
    RELEASE.of(host)
