"""Which addresses only the host itself reaches."""

from __future__ import annotations

import ipaddress
import re

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")


def is_loopback(bind: str) -> bool:
    """Whether a server that listens there is out of the network's reach."""
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


def is_address(bind: str) -> bool:
    """Whether it is one to listen on: an IP address, or a host's name."""
    try:
        ipaddress.ip_address(bind)
    except ValueError:
        return _NAME.match(bind) is not None and not bind.replace(".", "").isdigit()
    return True
