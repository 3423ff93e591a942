"""Ids that sort by time: of runs, benches and experiments."""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timezone

#: An id without a name in it.
DATED = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}\Z")


def dated_id(now_s: float, *names: str) -> str:
    """``20261129-201530-3f2a`` (UTC), with names before its last part."""
    moment = datetime.fromtimestamp(now_s, timezone.utc).strftime("%Y%m%d-%H%M%S")
    return "-".join((moment, *names, secrets.token_hex(2)))
