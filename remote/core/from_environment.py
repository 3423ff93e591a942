"""Settings of a host that the environment gives: ``INVOKE_HOSTS_GPU_PORT``.

Invoke reads only variables whose setting stands in the file already; what it passes over silently
is read, or refused, here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

PREFIX = "INVOKE_HOSTS_"


def filled(
    hosts: Mapping[str, object], keys: Collection[str], environ: Mapping[str, str]
) -> dict[str, object]:
    """The hosts' entries with those of ``keys`` that only the environment has."""
    read: dict[str, object] = {}
    for name, entry in hosts.items():
        read[name] = entry
        if isinstance(entry, Mapping):
            given = {
                key: environ[variable]
                for key in keys
                if key not in entry and (variable := _variable(name, key)) in environ
            }
            read[name] = {**entry, **given}
    return read


def passed_over(hosts: Mapping[str, object], environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like a host's setting and name none; ``hosts`` as `filled` gave them."""
    known = {path for name, entry in hosts.items() for path in _paths(_variable(name), entry)}
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            yield variable


def _variable(*path: str) -> str:
    return PREFIX + "_".join(path).upper()


def _paths(variable: str, value: object) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield variable
        return
    for key, inner in value.items():
        yield from _paths(f"{variable}_{key}".upper(), inner)
