"""What the host's words are worth: dead, stopped, killed for memory, full."""

from __future__ import annotations

from typing import Any

import pytest

from remote.core.host_evidence import process_evidence

OOM = "[   99.1] Out of memory: Killed process 4711 (sglang::schedul) total-vm:1kB"


def found(**changed: Any) -> dict[str, Any]:
    """A server with two ranks in good health."""
    ranks = {
        "server": {"pid": 1, "state": "S"},
        "TP0": {"pid": 2, "state": "R"},
        "TP1": {"pid": 3, "state": "S"},
        "detokenizer": {"pid": 4, "state": "S"},
    }
    return {
        "alive": True,
        "exit_status": None,
        "stop_requested": False,
        "ranks": ranks,
        "dead": [],
        "kernel": {"lines": [], "oom_kills": {}, "oom_kills_before": {}},
        "disks": [],
        "gpus": None,
        **changed,
    }


def without(*names: str, **changed: Any) -> dict[str, Any]:
    whole = found(**changed)
    return {**whole, "ranks": {n: it for n, it in whole["ranks"].items() if n not in names}}


def test_a_healthy_server_is_told_as_one() -> None:
    told = process_evidence(found(), ["TP0", "TP1"])
    assert told.alive and not told.dead_ranks and not told.stopped_ranks and not told.full_disks


@pytest.mark.parametrize(("shell", "status"), [(137, -9), (139, -11), (1, 1), (None, None)])
def test_the_shells_status_is_the_processs(shell: int | None, status: int | None) -> None:
    assert process_evidence(found(alive=False, exit_status=shell)).exit_status == status


def test_a_rank_that_the_log_names_and_nobody_runs_is_dead() -> None:
    assert process_evidence(without("TP1"), ["TP0", "TP1"]).dead_ranks == {"TP1": None}


def test_a_child_that_nobody_asked_about_tells_its_status() -> None:
    zombie = {"rank": None, "pid": 3, "name": "sglang::schedul", "exit": -9}
    assert process_evidence(without("TP1", dead=[zombie]), ["TP0", "TP1"]).dead_ranks == {"TP1": -9}


def test_a_rank_that_was_seen_alive_tells_its_status() -> None:
    dead = {"rank": "TP1", "pid": 3, "exit": -11}
    assert process_evidence(without("TP1", dead=[dead])).dead_ranks == {"TP1": -11}


def test_the_only_rank_of_a_server_wears_no_tag() -> None:
    alone = without("TP0", "TP1")
    assert process_evidence(alone, [""]).dead_ranks == {"scheduler": None}
    assert process_evidence(alone, []).dead_ranks == {}


def test_once_the_server_is_gone_absence_says_nothing() -> None:
    gone = {**found(alive=False, exit_status=1), "ranks": {}}
    assert process_evidence(gone, ["TP0", "TP1"]).dead_ranks == {}


def test_ranks_that_log_and_title_call_differently_are_not_missing() -> None:
    assert process_evidence(found(), ["rank0", "rank1"]).dead_ranks == {}


def test_a_server_whose_processes_have_no_titles_yet_lacks_none() -> None:
    early = without("TP0", "TP1", "detokenizer")
    assert process_evidence(early, ["TP0"]).dead_ranks == {}


def test_stopped_is_a_state_of_its_own() -> None:
    stopped = found()
    stopped["ranks"]["TP1"] = {"pid": 3, "state": "T"}
    stopped["ranks"]["TP0"] = {"pid": 2, "state": "t"}  # under a debugger
    assert process_evidence(stopped).stopped_ranks == ("TP1",)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        ({"lines": [OOM]}, True),
        ({"lines": ["[  1.0] Out of memory: Killed process 3 (postgres) total-vm:1kB"]}, False),
        ({"lines": ["[  1.0] usb 1-1: new device"]}, False),
        ({"lines": [], "reason": "no", "oom_kills": {"host": 3}}, None),
        ({"lines": [], "reason": "no", "oom_kills": {"host": 2}}, False),
        ({"lines": [], "reason": "no", "oom_kills": {"host": 3, "group": 1}}, True),
        ({"lines": [], "reason": "no", "oom_kills": {"host": None, "group": 0}}, None),
    ],
)
def test_only_the_kernels_word_makes_it_memory(kernel: dict[str, Any], told: bool | None) -> None:
    words = {"oom_kills": {}, "oom_kills_before": {"host": 2, "group": 0}, **kernel}
    assert process_evidence(found(kernel=words)).kernel_oom is told


def test_the_kernels_telling_lines_are_quoted_and_no_others() -> None:
    xid = "[  5.0] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    chatter = ["[  1.0] usb 1-1: new", "[  3.4] NVRM: Persistence mode is deprecated"]
    words = {"lines": [*chatter, xid], "oom_kills": {}, "oom_kills_before": {}}
    assert process_evidence(found(kernel=words)).kernel_lines == (xid,)


def test_full_disks_are_named() -> None:
    disks = [{"mount": "/", "full": False}, {"mount": "/data", "full": True}]
    assert process_evidence(found(disks=disks)).full_disks == ("/data",)


def test_ranks_that_were_seen_to_end_first_are_dead_although_all_are_gone_by_now() -> None:
    gone = found(alive=False, ranks={}, exit_status=137)
    assert process_evidence(gone, ["TP0", "TP1"], lost={"TP1": -9}).dead_ranks == {"TP1": -9}
