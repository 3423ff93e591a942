"""What a server's log says of graphs and of times, for the checks; pure."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass

_STAMP = r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] "
_DECODE = re.compile(r"Capture (?:\w+ )*cuda graph bs (\[[\d, ]+\])")
_PREFILL = re.compile(r"Capture (?:\w+ )*cuda graph num tokens (\[[\d, ]+\])")
_ENDED = re.compile(r"Capture (piecewise CUDA graph|cuda graph) end.*?[Tt]ime elapsed: ([\d.]+)")
_RANK = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:\w+ )*(TP\d+)[\] ]")


@dataclass(frozen=True)
class Captured:
    """Sizes of the graphs that were captured, and the seconds that each kind took; 0: none."""

    decode: int
    prefill: int
    decode_s: float
    prefill_s: float


def captured(log: str) -> Captured:
    """From the whole log; of several ranks the first that says it."""
    ended = {kind: float(seconds) for kind, seconds in reversed(_ENDED.findall(log))}
    decode_s = ended.get("cuda graph")
    prefill_s = ended.get("piecewise CUDA graph")
    return Captured(
        decode=_count(_DECODE, log) if decode_s is not None else 0,
        prefill=_count(_PREFILL, log) if prefill_s is not None else 0,
        decode_s=decode_s or 0.0,
        prefill_s=prefill_s or 0.0,
    )


def _count(pattern: re.Pattern[str], log: str) -> int:
    found = pattern.search(log)
    return len(json.loads(found[1])) if found else 0


def ranks(log: str) -> list[str]:
    """The tensor-parallel ranks that printed a line, in order."""
    return sorted(set(_RANK.findall(log)), key=lambda name: int(name[2:]))


def at(log: str, words: str) -> float | None:
    """When the first line with these words was printed, by the log's own clock: whole seconds."""
    for line in log.splitlines():
        if words in line and (found := re.match(_STAMP, line)):
            return time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S"))
    return None
