"""Ranks by the names that SGLang gives its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hosts import eventually

from remote.payload import procs, ranks


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("sglang::scheduler", "scheduler"),
        ("sglang::scheduler_TP0", "TP0"),
        ("sglang::scheduler_DP1_TP3_EP3", "DP1 TP3 EP3"),
        ("sglang::scheduler_PP0_TP12", "PP0 TP12"),
        ("sglang::scheduler_ATTN_CP0_TP1", "ATTN_CP0 TP1"),
        ("sglang::detokenizer", "detokenizer"),
        ("sglang::data_parallel_controller", "data_parallel_controller"),
        ("sglang::tokenizer_worker:4711", "tokenizer_worker"),
        ("python -m sglang.launch_server", None),
        ("sglang", None),
        ("", None),
    ],
)
def test_a_title_names_its_rank_as_the_log_does(title: str, name: str | None) -> None:
    assert ranks.name_of(title) == name


def titled(title: str) -> subprocess.Popen[bytes]:
    code = "print(flush=True); import time; time.sleep(60)"
    words = [title, "-S", "-c", code]
    child = subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    names = ("sglang::scheduler_TP0", "sglang::scheduler_TP1", "/usr/local/cuda/bin/cicc", "bash")
    started = [titled(name) for name in names]
    yield started
    for child in started:
        child.kill()
        child.wait()


def living(children: list[subprocess.Popen[bytes]]) -> list[procs.Process]:
    found = [procs.find(child.pid) for child in children]
    return [process for process in found if process is not None and process.alive]


def test_the_roster_names_ranks_and_the_server(children: list[subprocess.Popen[bytes]]) -> None:
    roster = ranks.roster(living(children), children[3].pid)
    assert {name: process.pid for name, process in roster.items()} == {
        "TP0": children[0].pid,
        "TP1": children[1].pid,
        "server": children[3].pid,
    }


def test_a_stopped_process_without_a_title_is_in_the_roster(
    children: list[subprocess.Popen[bytes]],
) -> None:
    os.kill(children[3].pid, signal.SIGSTOP)
    name = f"pid {children[3].pid}"
    found = eventually(lambda: ranks.roster(living(children), None).get(name))
    assert found.pid == children[3].pid


def test_compilers_at_work_are_seen(children: list[subprocess.Popen[bytes]]) -> None:
    assert ranks.builders(living(children)) == ["cicc"]


def test_a_dead_child_tells_how_it_ended(children: list[subprocess.Popen[bytes]]) -> None:
    os.kill(children[1].pid, signal.SIGKILL)
    me = procs.find(os.getpid())
    assert me is not None

    def ended() -> list[object]:
        return [child for child in ranks.dead_children([me]) if child["pid"] == children[1].pid]

    (child,) = eventually(ended)
    assert child["exit"] == -9
