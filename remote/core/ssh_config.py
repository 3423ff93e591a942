"""ssh_config as Paramiko's reader takes it: `Include` lines replaced by what they name, values
without quotes and comments.

An `Include` inside a `Host` or `Match` block counts only where that block does, and so do the
blocks of the file it names: each gets the conditions around it as well. Format: ssh_config(5).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable

#: As in OpenSSH.
MAX_DEPTH = 16

_SETTING = re.compile(r"\s*(?P<keyword>[A-Za-z0-9]+)(?:\s*=\s*|\s+)(?P<value>.*\S)\s*\Z")

#: Criteria of `Match`: those that stand alone, and those with a value that Paramiko knows.
_ALONE = frozenset({"all", "canonical", "final"})
_WITH_VALUE = frozenset({"host", "originalhost", "user", "localuser", "exec"})

#: Their value is the rest of the line, for a shell.
_COMMANDS = frozenset({"knownhostscommand", "localcommand", "proxycommand", "remotecommand"})

#: From the words of an `Include` line to the texts of the files they name, in order.
Include = Callable[[list[str]], Iterable[str]]


class BadConfig(ValueError):
    """A line that makes no sense, or files that include each other."""


def expanded(text: str, include: Include) -> str:
    """The text without `Include` lines.

    Raises:
        BadConfig: the reason.
    """
    return "\n".join(_lines(text, include, (), 0))


def _lines(text: str, include: Include, around: tuple[str, ...], depth: int) -> Iterable[str]:
    """
    Args:
        around: the conditions under which the file is read, as criteria of `Match`.
        depth: how many files name each other down to this one.
    """
    if depth > MAX_DEPTH:
        raise BadConfig(f"Include is nested deeper than {MAX_DEPTH} files: does one name itself?")
    here = around
    yield _block(here)
    for line in text.splitlines():
        found = _SETTING.match(line)
        if line.lstrip().startswith("#") or not found:
            yield line
            continue
        keyword, value = found["keyword"].lower(), found["value"]
        if keyword == "include":
            for named in include(words(value)):
                yield from _lines(named, include, here, depth + 1)
            yield _block(here)
        elif keyword in ("host", "match"):
            here = (*around, *_criteria(keyword, value))
            yield _block(here)
        elif keyword in _COMMANDS:
            yield line
        else:
            yield f"{keyword} {' '.join(words(value))}"


def words(value: str) -> list[str]:
    """The arguments of a line, quotes and a comment at its end taken away.

    Raises:
        BadConfig: a quote is not closed.
    """
    try:
        return shlex.split(value, comments=True)
    except ValueError as error:
        raise BadConfig(f"{error}: {value}") from error


def _criteria(keyword: str, value: str) -> tuple[str, ...]:
    """What a `Host` or `Match` line asks for, as criteria of `Match`; none where it is `all`."""
    given = words(value)
    if keyword == "host":
        return ("originalhost", ",".join(given))
    criteria: list[str] = []
    while given:
        word = given.pop(0).lower()
        name = word.removeprefix("!")
        if name in _WITH_VALUE and given:
            criteria += [word, given.pop(0)]
        elif name not in _ALONE:
            raise BadConfig(f"without OpenSSH, `Match {word}` is not understood: {value}")
        elif word != "all":
            criteria.append(word)
    return tuple(criteria)


def _block(criteria: tuple[str, ...]) -> str:
    """The line that begins a block under these conditions."""
    return f"Match {shlex.join(criteria)}" if criteria else "Match all"
