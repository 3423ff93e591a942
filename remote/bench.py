"""Measuring one server with SGLang's own bench client, on its host, detached from us."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote.clock import Clock
from remote.config import HostSettings
from remote.core import bench_plan, gpu_samples
from remote.core.bench_plan import BenchPlan, Job, Matrix
from remote.core.bench_result import Point, Result, judge, read_result, step_window
from remote.core.host_facts import RunState
from remote.errors import SSHError
from remote.host import Host, Piece
from remote.redial import Redial

#: How a runner ended when the server did.
SERVER_DIED = ("server_gone", "server_hung")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Progress:
    """Where a bench is; ``requests`` of the running point, None while its client starts."""

    done: int
    of: int
    level: int | None = None
    repeat: int | None = None
    elapsed_s: float = 0.0
    requests: int | None = None
    prompts: int = 0

    def __str__(self) -> str:
        if self.level is None:
            return f"{self.done} of {self.of} points"
        where = f"concurrency {self.level}, repeat {self.repeat}"
        did = "the client starts" if self.requests is None else f"{self.requests}/{self.prompts}"
        return f"{where}: {did}, {self.elapsed_s:.0f} s"


@dataclass(frozen=True)
class Link:
    """The connection is lost (``away_s`` None), or back after so many seconds."""

    away_s: float | None = None

    def __str__(self) -> str:
        if self.away_s is None:
            return "the connection was lost and is being dialled again; the bench goes on"
        return f"the connection was lost for {self.away_s:.0f} s and is back"


@dataclass(frozen=True)
class Measured:
    """A finished point as the host tells it, not yet judged."""

    told: Mapping[str, Any]
    raw: bytes
    gpu: str | None
    processes: str | None
    steps: bytes

    @property
    def name(self) -> str:
        return str(self.told["name"])

    def judged(self, plan: BenchPlan) -> tuple[Point, Result]:
        """The row, and what the client wrote."""
        job = Job(
            level=int(self.told["level"]),
            repeat=int(self.told["repeat"]),
            seed=int(self.told["seed"]),
            prompts=int(self.told["prompts"]),
            warm_ups=int(self.told["warm_ups"]),
        )
        result = read_result(self.raw)
        run = str(self.told["run"])
        gpu = gpu_samples.read(self.gpu, self.processes, run, step_window(self.steps))
        return judge(plan, job, run, self.told, result, gpu, self.steps), result


@dataclass(frozen=True)
class End:
    """How the runner on the host ended.

    ``outcome``: finished, stopped, server_gone, server_hung, server_stopped, stranger, disk_full,
    failed or vanished.
    """

    outcome: str
    why: str

    @property
    def server_died(self) -> bool:
        return self.outcome in SERVER_DIED


@dataclass(frozen=True)
class Seen:
    """A bench of a run as the host has it; ``plan`` None where its file is damaged."""

    bench: str
    running: bool
    done: tuple[str, ...]
    plan: BenchPlan | None
    who: Mapping[str, Any]
    end: End | None


def plan(
    settings: HostSettings,
    run: RunState,
    sglang: str,
    client: Mapping[str, Mapping[str, Any]],
    matrix: Matrix,
    bench: str,
    address: str,
    now_s: float,
    gpus: bool,
    note: str,
) -> BenchPlan:
    """The plan of a bench of that run.

    Args:
        client: the flags of `flags`.
        address: where the server answers on its own host.
        gpus: whether the server works on GPUs at all.
    """
    argv = [str(word) for word in run.record.get("argv", ())]
    model = bench_plan.flag_value(argv, "model-path") or settings.model
    tokenizer = bench_plan.flag_value(argv, "tokenizer-path") or model
    return BenchPlan(
        bench=bench,
        run=run.run,
        host=settings.name,
        profile=str(run.record.get("profile", "")),
        levels=matrix.levels,
        input_len=matrix.input_len,
        output_len=matrix.output_len,
        repeats=matrix.repeats,
        prompts=matrix.prompts,
        seeds=matrix.seeds,
        range_ratio=1.0,
        warm_up=True,
        flush_cache=True,
        quick=matrix.quick,
        sglang=sglang,
        argv=bench_plan.client_words(
            client,
            address=address,
            port=settings.port,
            model=model,
            tokenizer=tokenizer,
            input_len=matrix.input_len,
            output_len=matrix.output_len,
            sglang=sglang,
            host=settings.name,
        ),
        tokenizer=tokenizer,
        model=model,
        made_at=now_s,
        gpus=bench_plan.gpus_of(argv) if gpus else 0,
        note=note,
    )


def start(
    host: Host,
    settings: HostSettings,
    run: str,
    plan: BenchPlan,
    jobs: Sequence[Job],
    address: str,
    limit_s: float,
    who: Mapping[str, str],
) -> None:
    """Start measuring these points of the plan on that run.

    Raises:
        Locked: the run is being measured already.
        ToolError: it has no living server.
    """
    host.call(
        "bench.start",
        state=settings.state,
        run=run,
        bench=plan.bench,
        venv=settings.venv,
        address=address,
        port=settings.port,
        plan=plan.as_dict(),
        jobs=[
            {
                "name": job.name,
                "level": job.level,
                "repeat": job.repeat,
                "seed": job.seed,
                "prompts": job.prompts,
                "warm_ups": job.warm_ups,
                "argv": bench_plan.filled(plan.argv, job, "{output}"),
            }
            for job in jobs
        ],
        limit_s=limit_s,
        who=dict(who),
    )


def require_idle(host: Host, settings: HostSettings, run: str) -> None:
    """Refuse a run that is being measured.

    Raises:
        Locked: it is, with who measures it.
    """
    host.call("bench.require_idle", state=settings.state, run=run)


def look(host: Host, settings: HostSettings, run: str) -> tuple[Seen, ...]:
    """The benches of a run, oldest first."""
    found = []
    for each in host.call("bench.look", state=settings.state, run=run)["benches"]:
        try:
            plan = BenchPlan.from_dict(each["plan"] or {})
        except ValueError:
            plan = None
        end = each["end"]
        found.append(
            Seen(
                bench=str(each["bench"]),
                running=bool(each["running"]),
                done=tuple(each["done"]),
                plan=plan,
                who=each["who"] or {},
                end=None if end is None else End(str(end["outcome"]), str(end["why"])),
            )
        )
    return tuple(found)


def follow(
    host: Host,
    settings: HostSettings,
    run: str,
    bench: str,
    have: Sequence[str],
    clock: Clock,
) -> Iterator[Measured | Progress | Link | End]:
    """What a bench does until it ends; a lost connection is dialled again and no point lost.

    Args:
        have: names of points that needn't come.

    Raises:
        SSHError: dialling again failed too; the bench goes on.
    """
    redial = Redial(host, clock)
    had = list(have)
    while True:
        try:
            with host.stream(
                "bench.follow", state=settings.state, run=run, bench=bench, have=had
            ) as pieces:
                for piece in pieces:
                    if (away_s := redial.back()) is not None:
                        yield Link(away_s)
                    if "point" in piece.body:
                        measured = _measured(piece)
                        yield measured
                        had.append(measured.name)
                    elif "progress" in piece.body:
                        yield Progress(**piece.body["progress"])
                    elif "end" in piece.body:
                        end = piece.body["end"]
                        yield End(str(end["outcome"]), str(end["why"]))
                        return
        except SSHError as error:
            if redial.lost(error):
                yield Link()


def _measured(piece: Piece) -> Measured:
    data = zlib.decompress(piece.data)
    parts: dict[str, bytes | None] = {}
    at = 0
    for name, size in piece.body["parts"].items():
        parts[name] = None if size is None else data[at : at + size]
        at += size or 0
    gpu, processes = parts["gpu"], parts["processes"]
    return Measured(
        told=piece.body["point"],
        raw=parts["raw"] or b"",
        gpu=None if gpu is None else gpu.decode("utf-8", "replace"),
        processes=None if processes is None else processes.decode("utf-8", "replace"),
        steps=parts["steps"] or b"",
    )


def stop(host: Host, settings: HostSettings, run: str, bench: str, tell: Tell) -> None:
    """End a bench; the server goes on, and finished points stay."""
    with host.stream(
        "bench.stop", state=settings.state, run=run, bench=bench, grace_s=10.0
    ) as messages:
        for message in messages:
            tell(f"ending {message.body['alive']} processes of the bench")
