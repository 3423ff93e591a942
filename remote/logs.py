"""A run's log for reading: the last lines, since when, only what matches, or as it grows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from remote.clock import Clock
from remote.config import HostSettings
from remote.core.log_lines import Collapser, printable
from remote.errors import ConfigError, SSHError
from remote.host import Host, Piece, Request
from remote.payload import patience
from remote.redial import Redial
from remote.server import Follower, LinkNews, describe_status

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])\Z")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(:\d\d)?)?\Z")


@dataclass(frozen=True)
class Selection:
    """Which lines are wanted; all of them where nothing is given.

    ``since`` is ``YYYY-MM-DD HH:MM:SS`` in the host's time, ``ago_s`` seconds before now.
    """

    tail: int | None = None
    since: str | None = None
    ago_s: float | None = None
    grep: str | None = None


def selection(tail: int | None, since: str | None, grep: str | None) -> Selection:
    """From what a user typed.

    Args:
        since: ``90s``, ``10m``, ``2h``, ``1d``, or ``2026-11-29[ 20:15[:30]]`` in the host's time.
        grep: a regular expression.

    Raises:
        ConfigError: one of them makes no sense.
    """
    if tail is not None and tail < 0:
        raise ConfigError(f"--tail wants a number of lines, found {tail}")
    if grep is not None:
        try:
            re.compile(grep.encode())
        except re.error as error:
            raise ConfigError(f"--grep {grep!r} is no regular expression: {error}") from error
    if since is None:
        return Selection(tail, None, None, grep)
    if found := _DURATION.match(since):
        return Selection(tail, None, float(found[1]) * _UNIT_S[found[2]], grep)
    if found := _MOMENT.match(since):
        moment = f"{found[1]} {found[2] or '00:00'}{found[3] or ':00'}"
        return Selection(tail, moment, None, grep)
    raise ConfigError(
        f"--since {since!r} is neither a duration nor a time",
        hint="try 10m, 2h, or '2026-11-29 20:15'",
    )


def lines(
    host: Host,
    settings: HostSettings,
    run: str,
    wanted: Selection,
    *,
    follow: bool,
    clock: Clock,
    tell: Callable[[str], None],
    ahead: Request | None = None,
) -> Iterator[str]:
    """The lines as a terminal would leave them, safe to print; with ``follow``, until the end.

    Args:
        ahead: what was asked of the host already, as `request` made it.
        tell: told what is no line: a search's progress, a lost connection, the server's end.
    """
    collapser = Collapser()
    end = 0
    for piece in _selected(
        host, clock, tell, ahead or request(settings, run, wanted, follow=follow), run
    ):
        end = int(piece.body.get("end", end))
        yield from map(printable, collapser.feed(piece.data))
    if follow:
        follower = Follower(host, settings, run, clock)
        follower.offset = end
        pattern = re.compile(wanted.grep) if wanted.grep else None
        for line in _followed(follower, collapser, tell):
            try:
                found = pattern is None or patience.matches(pattern, line)
            except patience.TooSlow as slow:
                raise ConfigError(slow.message, hint=slow.hint) from None
            if found:
                yield printable(line)
    else:
        yield from map(printable, collapser.finish())


def request(settings: HostSettings, run: str | None, wanted: Selection, *, follow: bool) -> Request:
    """What `lines` asks first; ``run`` may be None for the newest."""
    params = {
        "state": settings.state,
        "run": run,
        "start": None,
        "tail": wanted.tail,
        "since": wanted.since,
        "ago_s": wanted.ago_s,
        "grep": wanted.grep,
        "whole_lines": follow,
    }
    return Request("log.select", params)


def _selected(
    host: Host, clock: Clock, tell: Callable[[str], None], asked: Request, run: str
) -> Iterator[Piece]:
    """The selection's pieces; after a lost connection, from where it broke off."""
    redial = Redial(host, clock)
    while True:
        try:
            with asked.streamed(host) as pieces:
                for piece in pieces:
                    if (away_s := redial.back()) is not None:
                        tell(str(LinkNews(away_s)))
                    start = int(piece.body["next"])
                    asked = replace(asked, params={**asked.params, "run": run, "start": start})
                    yield piece
            return
        except SSHError as error:
            asked = replace(asked, params={**asked.params, "run": run})
            if redial.lost(error):
                tell(str(LinkNews()))


def _followed(
    follower: Follower, collapser: Collapser, tell: Callable[[str], None]
) -> Iterator[str]:
    for news in follower.pieces():
        if isinstance(news, LinkNews):
            tell(str(news))
            continue
        if "restarted" in news.body:
            tell(f"{news.body['restarted']}: reading it from its beginning")
        elif "gone" in news.body:
            tell(f"the server is gone ({describe_status(news.body['gone'])})")
        yield from collapser.feed(news.data)
    yield from collapser.finish()
