"""What nvidia-smi said during a point: figures, throttling, and who else used the GPUs.

Two texts for each point, both as the host wrote them: the samples, one row a GPU and second
(``nvidia-smi --query-gpu=… --format=csv,nounits``), and the processes seen on the GPUs, one row
each (``seconds,gpu uuid,pid,MiB,run,owner,command``; the run is ``-`` where it is none of this
tool's, and the command last for it may hold commas).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Bits of nvidia-smi's clock event reasons (NVML), of which each makes a point invalid: the GPU
#: was slower than it is. A software power cap is not among them, for a busy GPU at its power limit
#: is the usual case; its share of the samples is a figure.
_THROTTLING = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_POWER_CAP = 0x4
#: Of a GPU's samples that may be throttled before the point counts as slowed down.
_THROTTLED_SHARE = 0.05

_MEAN_AND_MOST = {
    "power.draw": "power_w",
    "clocks.current.sm": "clock_mhz",
    "memory.used": "memory_mib",
    "utilization.gpu": "utilisation_percent",
    "temperature.gpu": "temperature_c",
}
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")

NO_GPU = "no GPU figures: there is no nvidia-smi on this host"


@dataclass(frozen=True)
class GPUReading:
    """A point's GPU figures, and what they say against it.

    Attributes:
        figures: over the server's GPUs; None where nothing was sampled.
        note: why there are none, or what couldn't be told.
        against: reasons for which the point is invalid.
    """

    figures: dict[str, Any] | None
    note: str
    against: tuple[str, ...] = ()


def read(
    samples: str | None,
    processes: str | None,
    run: str,
    window: tuple[str, str] | None = None,
) -> GPUReading:
    """Figures and objections.

    Args:
        samples: None where the host has no nvidia-smi.
        run: whose GPUs count; with none seen to be its own, all of them do.
        window: when the server worked, ``YYYY-MM-DD HH:MM:SS`` of the host: the client's own
            start and end lie around it, and idle seconds are no figures of the load.
    """
    if samples is None:
        return GPUReading(None, NO_GPU)
    rows = _rows(samples)
    if not rows:
        said = " ".join(samples.split())[:200]
        return GPUReading(
            None, f"no GPU figures: nvidia-smi gave no sample{': ' if said else ''}{said}"
        )
    seen = _processes(processes or "")
    ours = {each.gpu for each in seen if each.run == run}
    note = ""
    if ours:
        rows = [row for row in rows if row.get("uuid") in ours] or rows
    elif seen:
        note = "none of the processes on the GPUs is seen to be this run's: all GPUs are counted"
    if window is not None:
        rows = [row for row in rows if window[0] <= _second(row) <= window[1]] or rows
    figures: dict[str, Any] = {
        "gpus": len({row.get("uuid", row.get("index", "")) for row in rows}),
        "samples": len(rows),
    }
    for field, name in _MEAN_AND_MOST.items():
        values = [value for row in rows if (value := _number(row.get(field, ""))) is not None]
        if values:
            figures[f"{name}_mean"] = round(statistics.fmean(values), 1)
            figures[f"{name}_max"] = round(max(values), 1)
    masks = [mask for row in rows if (mask := _mask(row)) is not None]
    against = []
    if masks:
        figures["power_capped_share"] = _share(masks, _POWER_CAP)
        reasons = {
            name: _share(masks, bit) for bit, name in _THROTTLING.items() if _share(masks, bit)
        }
        figures["throttle_reasons"] = reasons
        against += [
            f"the GPU was throttled: {name} in {share:.0%} of the samples"
            for name, share in reasons.items()
            if share >= _THROTTLED_SHARE
        ]
    if ours:
        against += _foreign(seen, ours, run)
    return GPUReading(figures, note, tuple(against))


@dataclass(frozen=True)
class _Process:
    gpu: str
    pid: int
    mib: str
    run: str
    owner: str
    command: str


def _processes(text: str) -> list[_Process]:
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", 6)]
        if len(cells) == 7 and cells[2].isdigit():
            found.append(_Process(cells[1], int(cells[2]), *cells[3:]))
    return found


def _foreign(seen: Sequence[_Process], ours: set[str], run: str) -> list[str]:
    """Each process of somebody else on one of the run's GPUs, once."""
    others = {each.pid: each for each in seen if each.gpu in ours and each.run != run}
    return [
        f"another process used the server's GPU: pid {pid} of {each.owner}, {each.mib} MiB:"
        f" {each.command[:120]}"
        for pid, each in sorted(others.items())
    ]


def _rows(text: str) -> list[dict[str, str]]:
    """The samples by field; nvidia-smi's header gives the names, units in brackets behind them."""
    rows: list[dict[str, str]] = []
    names: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if "index" in cells:
            names = [cell.partition(" [")[0] for cell in cells]
        # The last row may be cut off where the sampling was ended.
        elif names and len(cells) == len(names):
            rows.append(dict(zip(names, cells, strict=True)))
    return rows


def _second(row: dict[str, str]) -> str:
    """A sample's time as the server's log writes it; nvidia-smi has slashes and milliseconds."""
    return row.get("timestamp", "").replace("/", "-")[:19]


def _number(text: str) -> float | None:
    """The number, or None for ``[N/A]`` and the like."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _mask(row: dict[str, str]) -> int | None:
    for field in _REASONS:
        try:
            return int(row.get(field, ""), 16)
        except ValueError:
            continue
    return None


def _share(masks: Sequence[int], bit: int) -> float:
    return round(sum(1 for mask in masks if mask & bit) / len(masks), 3)
