"""Rows of a bench kept here: whole or not at all, once, whoever collects."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from bench_samples import BENCH, RUN, bench_plan_with

from remote.bench_store import LocalBench, benches, measured_before
from remote.core.bench_result import Point
from remote.core.ids import dated_id
from remote.errors import ConfigError, ToolError

PLAN = bench_plan_with()


def point(level: int = 1, repeat: int = 1, valid: bool = True) -> Point:
    return Point(
        bench=BENCH,
        run=RUN,
        level=level,
        repeat=repeat,
        seed=repeat,
        input_len=16,
        output_len=8,
        prompts=8,
        valid=valid,
        reasons=() if valid else ("cut",),
        completed=8,
        failed=0,
        metrics={"output_throughput": 10.0},
        gpu=None,
        gpu_note="",
        server=None,
        started_at=1.0,
        ended_at=2.0,
        source={"file": "x", "line": 1},
    )


@pytest.fixture
def local(tmp_path: Path) -> LocalBench:
    made = LocalBench(tmp_path, RUN, BENCH)
    made.keep_plan(PLAN)
    return made


def test_rows_come_back_and_are_private(local: LocalBench) -> None:
    assert local.append(point(1)) and local.append(point(4, valid=False))
    assert local.points() == (point(1), point(4, valid=False))
    assert local.plan() == PLAN
    for path in local.folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_a_row_is_there_once(local: LocalBench) -> None:
    assert local.append(point())
    assert not local.append(replace(point(), seed=99))
    assert local.points() == (point(),)


def test_a_line_cut_off_by_a_kill_costs_that_row_alone(local: LocalBench) -> None:
    local.append(point(1))
    whole = local.points_path.read_bytes()
    local.points_path.write_bytes(whole + whole[:40])
    assert local.points() == (point(1),)
    assert local.append(point(4))
    assert local.points() == (point(1), point(4))


def test_a_corrupt_line_in_the_middle_is_passed_over(local: LocalBench) -> None:
    local.append(point(1))
    local.points_path.write_bytes(b'\xff{"level": \n[]\n' + local.points_path.read_bytes())
    assert local.points() == (point(1),)


def _small_files(local: LocalBench, outcome: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = local.points_path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
    try:
        local.append(point(4))
    except ToolError as error:
        # Exit the child with what a user would read; files can't grow here any more.
        os.write(2, str(error).encode())
        os._exit(7 if "--resume" in (error.hint or "") else 8)
    os._exit(0)


def test_a_full_disk_leaves_what_was_there_and_says_how_to_go_on(
    local: LocalBench, tmp_path: Path
) -> None:
    local.append(point(1))
    before = local.points_path.read_bytes()
    child = multiprocessing.get_context("fork").Process(
        target=_small_files, args=(local, tmp_path / "outcome")
    )
    child.start()
    child.join()
    assert child.exitcode == 7
    assert local.points_path.read_bytes() == before
    assert local.append(point(4))


def _append_all(local: LocalBench) -> None:
    for repeat in range(1, 31):
        local.append(point(1, repeat))


def test_two_clients_that_collect_at_once_make_each_row_once(local: LocalBench) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_append_all, args=(local,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    lines = local.points_path.read_text().splitlines()
    assert sorted(json.loads(line)["repeat"] for line in lines) == list(range(1, 31))


def test_the_run_that_replaced_a_dead_one_finds_the_bench(local: LocalBench) -> None:
    local.goes_on_with("20261129-130000-baseline-9999")
    runs = local.folder.parents[2]
    (found,) = benches(runs, "20261129-130000-baseline-9999")
    assert found.folder == local.folder
    assert [each.bench for each in benches(runs, RUN)] == [BENCH]
    assert benches(runs, "20261129-140000-other-0000") == []


def test_what_was_measured_before_on_the_same_host_with_the_same_profile(
    local: LocalBench,
) -> None:
    local.append(point(1))
    local.append(point(4, valid=False))
    runs = local.folder.parents[2]
    assert [each.level for _, each in measured_before(runs, "lab", "baseline")] == [1]
    assert measured_before(runs, "lab", "piecewise") == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"bench": 1}'])
def test_a_damaged_plan_is_told(local: LocalBench, text: str) -> None:
    (local.folder / "plan.json").write_text(text)
    with pytest.raises(ToolError, match=r"plan\.json can't be read"):
        local.plan()


def test_an_id_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        LocalBench(tmp_path, RUN, "../../etc")


def test_ids_sort_by_time() -> None:
    assert dated_id(1796000000.0) < dated_id(1796000001.0)
