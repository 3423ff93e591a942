"""What a host is and what runs on it, as values; from the answers of `payload/facts.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote.core.shell import masked


@dataclass(frozen=True)
class GPU:
    """One GPU as nvidia-smi names it; memory in MiB."""

    index: int
    name: str
    uuid: str
    memory_mib: int
    used_mib: int
    driver: str
    compute_capability: str


@dataclass(frozen=True)
class GPUProcess:
    """A process with memory on a GPU."""

    gpu_uuid: str
    pid: int
    used_mib: int | None


@dataclass(frozen=True)
class Holder:
    """Who holds the server's port; pid 0 where that can't be seen."""

    pid: int
    start: int | None
    owner: str
    command: tuple[str, ...]
    run: str | None

    def __str__(self) -> str:
        if not self.pid:
            return "a process that this user may not see"
        return f"pid {self.pid} of {self.owner}: {' '.join(masked(self.command))[:300]}"


@dataclass(frozen=True)
class RunState:
    """One run of the host as found: what was written down at its start, and what lives of it."""

    run: str
    record: Mapping[str, Any]
    rebooted: bool
    server_pid: int | None
    pids: tuple[int, ...]
    exit_status: int | None
    stop_requested: bool
    outcome: Mapping[str, Any] | None
    log_bytes: int
    now: float
    ended_at: float | None = None

    @property
    def alive(self) -> bool:
        return bool(self.pids)

    @property
    def uptime_s(self) -> float | None:
        """Seconds since the start, by the host's clock, while it lives."""
        return self.now - float(self.record["started_at"]) if self.alive else None

    @property
    def missing_ranks(self) -> tuple[str, ...]:
        """Ranks that a wait saw and that are gone while the server's main process goes on."""
        seen: Mapping[str, int] = (self.outcome or {}).get("ranks") or {}
        living = set(self.pids)
        if self.server_pid is None:
            return ()
        return tuple(name for name, pid in seen.items() if pid not in living)

    @property
    def state(self) -> str:
        """One word: ready, starting, hung, dying, stopped, crashed, rebooted or ended.

        What a wait saw goes before what the processes show: a server that printed a fatal line
        has crashed, whether it still lives or was ended afterwards.
        """
        seen = str(self.outcome["outcome"]) if self.outcome else ""
        if seen in ("crashed", "died_after_ready"):
            return "crashed"
        if self.missing_ranks:
            return "dying"
        if self.server_pid is not None:
            return seen if seen in ("ready", "hung") else "starting"
        if self.alive:
            return "dying"
        if self.rebooted and self.exit_status is None:
            return "rebooted"
        if self.stop_requested:
            return "stopped"
        return "ended" if self.exit_status == 0 else "crashed"


@dataclass(frozen=True)
class HostFacts:
    """The host in one reading.

    ``roots`` are the folders in which an installed file may lie; ``measured`` says of runs that are
    being benched who does it; ``strays`` are processes of runs that the state folder doesn't know.
    """

    hostname: str
    user: str
    python: str
    python_version: str
    identity: str
    site_packages: str | None
    roots: tuple[str, ...]
    distributions: Mapping[str, Mapping[str, Any]]
    gpus: tuple[GPU, ...]
    gpu_processes: tuple[GPUProcess, ...]
    no_gpus_because: str | None
    cuda_home: str
    nvcc: bool
    port_owner: Holder | None
    state_free_bytes: int | None
    model_path: str
    model_missing: bool
    runs: tuple[RunState, ...]
    measured: Mapping[str, str]
    strays: Mapping[str, Sequence[int]]
    raw: Mapping[str, Any]

    def version(self, distribution: str) -> str | None:
        """The installed version of a distribution."""
        found = self.distributions.get(distribution)
        return str(found["version"]) if found else None

    @property
    def current(self) -> RunState | None:
        """The newest run that has living processes, else the newest run."""
        living = [run for run in self.runs if run.alive]
        shown = living or list(self.runs)
        return shown[-1] if shown else None


def run_state(found: Mapping[str, Any]) -> RunState:
    """From the answer of `runs.look`."""
    return RunState(
        run=found["run"],
        record=found["record"],
        rebooted=found["rebooted"],
        server_pid=found["server_pid"],
        pids=tuple(found["pids"]),
        exit_status=found["exit_status"],
        stop_requested=found["stop_requested"],
        outcome=found["outcome"],
        log_bytes=found["log_bytes"],
        now=found["now"],
        ended_at=found.get("ended_at"),
    )


def holder(found: Mapping[str, Any] | None) -> Holder | None:
    """From a process as `payload/procs.describe` gives it."""
    if found is None:
        return None
    return Holder(
        pid=found["pid"],
        start=found.get("start"),
        owner=found["owner"],
        command=tuple(found["command"]),
        run=found["run"],
    )


def gpus(csv: str) -> tuple[GPU, ...]:
    """GPUs from nvidia-smi's CSV without header and units (fields: `payload/gpus.py`)."""
    found = []
    for row in csv.splitlines():
        fields = [field.strip() for field in row.split(",")]
        if len(fields) == 7:
            index, name, uuid, total, used, driver, capability = fields
            found.append(
                GPU(
                    _mib(index) or 0,
                    name,
                    uuid,
                    _mib(total) or 0,
                    _mib(used) or 0,
                    driver,
                    capability,
                )
            )
    return tuple(found)


def gpu_processes(csv: str) -> tuple[GPUProcess, ...]:
    """Processes from nvidia-smi's CSV; containers may hide what memory they use."""
    found = []
    for row in csv.splitlines():
        fields = [field.strip() for field in row.split(",")]
        if len(fields) == 3 and fields[1].isdigit():
            found.append(GPUProcess(fields[0], int(fields[1]), _mib(fields[2])))
    return tuple(found)


def _mib(text: str) -> int | None:
    try:
        return int(float(text))
    except ValueError:
        return None


def read(found: Mapping[str, Any]) -> HostFacts:
    """From the answer of `facts.read`."""
    told = found["gpus"]
    model = found["model"]
    return HostFacts(
        hostname=found["hostname"],
        user=found["user"],
        python=found["python"]["path"],
        python_version=found["python"]["version"],
        identity=found["identity"],
        site_packages=found["site_packages"],
        roots=tuple(found.get("roots", ())),
        distributions=found["distributions"],
        gpus=gpus(told.get("gpus", "")),
        gpu_processes=gpu_processes(told.get("apps", "")),
        no_gpus_because=told.get("reason"),
        cuda_home=found["cuda"]["home"],
        nvcc=found["cuda"]["nvcc"],
        port_owner=holder(found["port"]),
        state_free_bytes=found["disk"]["state"],
        model_path=model["path"],
        model_missing=model["local"] and not model["exists"],
        runs=tuple(run_state(run) for run in found["runs"]),
        measured=found.get("measured", {}),
        strays=found.get("strays", {}),
        raw={
            key: value for key, value in found.items() if key not in ("runs", "measured", "strays")
        },
    )
