"""Values laid over one another, each remembering where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A value and the layer that gave it: ``profile baseline``, ``host gpu``, ``--set``."""

    value: T
    source: str


def overlay(layers: Iterable[tuple[str, Mapping[str, T | None]]]) -> dict[str, Sourced[T]]:
    """Lay ``(source, values)`` over one another, the last one winning; None takes a value away."""
    result: dict[str, Sourced[T]] = {}
    for source, values in layers:
        for name, value in values.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = Sourced(value, source)
    return result
