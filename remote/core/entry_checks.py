"""What Invoke itself would answer with a traceback, told in a line: settings and numbers.

Imported at the start of every task, so it imports next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def misshapen(
    settings: object, defaults: Mapping[str, object], path: str = ""
) -> Iterator[tuple[str, str]]:
    """Where a file has a value and the defaults a mapping, or the other way round.

    Invoke merges the two, and can't.

    Yields:
        The key's path, and what is wrong with it.
    """
    if not isinstance(settings, Mapping):
        if settings is not None:
            yield path or "the file", f"wanted a mapping, found {settings!r}"
        elif path:
            yield path, "is empty: take it out, or put something under it"
        return
    for key, default in defaults.items():
        if key not in settings:
            continue
        where, value = f"{path}.{key}" if path else key, settings[key]
        if isinstance(default, Mapping):
            yield from misshapen(value, default, where)
        elif isinstance(value, Mapping):
            yield where, "wanted a value, found a mapping"


def uncastable(
    settings: Mapping[str, object], environ: Mapping[str, str], prefix: str = "INVOKE"
) -> Iterator[tuple[str, str]]:
    """Environment variables that Invoke would turn into numbers, and that are none.

    Args:
        settings: defaults and file, merged.

    Yields:
        The variable's name, and what is wrong with it.
    """
    for key, value in settings.items():
        name = f"{prefix}_{str(key).upper()}"
        if isinstance(value, Mapping):
            yield from uncastable(value, environ, name)
        elif name in environ and isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                type(value)(environ[name])
            except ValueError:
                yield name, f"wanted a number, found {environ[name]!r}"


def number(option: str, text: str, like: int | float) -> int | float:
    """The number that an option was given.

    Args:
        like: a whole number where only those will do.

    Raises:
        ValueError: it is none, or below zero, or zero where it is no whole number (a duration);
            with the words to show.
    """
    whole = isinstance(like, int)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = -1
    if value < 0 or (not whole and not 0 < value < float("inf")):
        kind = "a whole number from 0 on" if whole else "a number above 0"
        raise ValueError(f"--{option.replace('_', '-')}: wanted {kind}, found {text!r}")
    return value
