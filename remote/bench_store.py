"""What is kept here of a bench: ``runs/<run>/bench/<bench>/``, rows appended as points finish."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remote.core.bench_plan import BenchPlan
from remote.core.bench_result import Point
from remote.core.ids import DATED
from remote.errors import ConfigError, ToolError
from remote.private_file import write_whole


class LocalBench:
    """The folder of one bench here.

    Args:
        runs: the folder of all runs.
        run: the run that the bench began on.
    """

    def __init__(self, runs: Path, run: str, bench: str) -> None:
        if not DATED.match(bench):
            raise ConfigError(f"{bench!r} is not the id of a bench")
        self.run = run
        self.bench = bench
        self.folder = runs / run / "bench" / bench

    @property
    def points_path(self) -> Path:
        return self.folder / "points.jsonl"

    def plan(self) -> BenchPlan:
        """The matrix.

        Raises:
            ToolError: plan.json is missing or damaged.
        """
        path = self.folder / "plan.json"
        try:
            return BenchPlan.from_dict(json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ToolError(
                f"{path} can't be read: {error}",
                hint=f"inv bench --run {self.run} measures anew",
            ) from error

    def keep_plan(self, plan: BenchPlan) -> None:
        """Write the plan, once."""
        if not (self.folder / "plan.json").exists():
            self.write("plan.json", json.dumps(plan.as_dict(), indent=1).encode() + b"\n")

    def servers(self) -> tuple[str, ...]:
        """The runs that points were measured on, in order; the first may have died."""
        try:
            said = json.loads((self.folder / "servers.json").read_bytes())
            return tuple(str(run) for run in said["runs"])
        except (OSError, ValueError, KeyError, TypeError):
            return (self.run,)

    def goes_on_with(self, run: str) -> None:
        """The missing points are measured on that run."""
        known = self.servers()
        if run not in known:
            self.write("servers.json", json.dumps({"runs": [*known, run]}).encode() + b"\n")

    def points(self) -> tuple[Point, ...]:
        """The rows; a line that a crash cut off or damaged is none, and of two alike the first."""
        try:
            lines = self.points_path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return ()
        found: dict[tuple[int, int], Point] = {}
        for line in lines:
            try:
                point = Point.from_dict(json.loads(line))
            except ValueError:
                continue
            found.setdefault(point.key, point)
        return tuple(found.values())

    def append(self, point: Point) -> bool:
        """Add a row, whatever happens whole or not at all; False where it is there already.

        Raises:
            ToolError: there is no room, or no permission; nothing was changed.
        """
        with self._writing():
            if any(known.key == point.key for known in self.points()):
                return False
            line = json.dumps(point.as_dict(), allow_nan=False).encode() + b"\n"
            fd = os.open(self.points_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":  # a kill cut the last one off
                    line = b"\n" + line
                try:
                    view = memoryview(line)
                    while view:
                        view = view[os.write(fd, view) :]
                    os.fsync(fd)
                except BaseException:
                    os.ftruncate(fd, size)
                    raise
            finally:
                os.close(fd)
        return True

    def write(self, name: str, content: bytes) -> None:
        """Put a file there in one step; ``name`` may name one folder.

        Raises:
            ToolError: there is no room, or no permission.
        """
        path = self.folder / name
        with self._room():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, content)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One writer at a time: two clients may collect the same bench."""
        with self._room():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ToolError(
                f"{self.folder} can't be written: {error.strerror or error}",
                hint="nothing is lost, the host keeps every point; make room, then:"
                f" inv bench --run {self.servers()[-1]} --resume",
            ) from error


def benches(runs: Path, run: str) -> list[LocalBench]:
    """The benches that a run was measured in, oldest first.

    Also those that began on an earlier run whose server died.
    """
    found = []
    for folder in runs.glob("*/bench/*"):
        if DATED.match(folder.name) and (folder / "plan.json").exists():
            bench = LocalBench(runs, folder.parent.parent.name, folder.name)
            if run in bench.servers():
                found.append(bench)
    return sorted(found, key=lambda bench: bench.bench)


def measured_before(
    runs: Path, host: str, profile: str, most: int = 200
) -> list[tuple[Mapping[str, Any], Point]]:
    """Valid points of the host with the profile, newest last, each with its plan as kept."""
    found: list[tuple[Mapping[str, Any], Point]] = []
    for path in sorted(runs.glob("*/bench/*/plan.json"), key=lambda path: path.parent.name)[-most:]:
        try:
            plan = json.loads(path.read_bytes())
            wanted = plan["host"] == host and plan["profile"] == profile
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if wanted:
            bench = LocalBench(runs, path.parents[2].name, path.parent.name)
            found += [(plan, point) for point in bench.points() if point.valid]
    return found[-most:]
