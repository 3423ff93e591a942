"""What a host says of itself, as values; and a run's state in one word."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hosts import LocalHost

from remote import venv
from remote.config import HostSettings
from remote.core import host_facts
from remote.core.host_facts import GPU, GPUProcess, RunState

GPUS = (
    "0, NVIDIA RTX PRO 6000 Blackwell Server Edition, GPU-1, 97887, 4, 590.44.01, 12.0\n"
    "1, NVIDIA RTX PRO 6000 Blackwell Server Edition, GPU-2, 97887, 81000, 590.44.01, 12.0\n"
)


def test_gpus_are_read_from_nvidia_smis_table() -> None:
    first, second = host_facts.gpus(GPUS)
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert first == GPU(0, name, "GPU-1", 97887, 4, "590.44.01", "12.0")
    assert (second.index, second.used_mib) == (1, 81000)


@pytest.mark.parametrize(
    "text", ["", "\n", "No devices were found\n", "Unable to determine the device handle\n"]
)
def test_what_is_no_row_is_no_gpu(text: str) -> None:
    assert host_facts.gpus(text) == ()


def test_figures_that_a_card_does_not_give_do_not_hide_it() -> None:
    (gpu,) = host_facts.gpus("0, NVIDIA GB10, GPU-1, [N/A], [N/A], 580.1, 12.1\n")
    assert (gpu.name, gpu.memory_mib) == ("NVIDIA GB10", 0)


def test_processes_on_gpus_also_where_their_memory_is_hidden() -> None:
    text = "GPU-1, 4242, 70000\nGPU-2, 4243, [Not Found]\nno processes\n"
    assert host_facts.gpu_processes(text) == (
        GPUProcess("GPU-1", 4242, 70000),
        GPUProcess("GPU-2", 4243, None),
    )


def run(**found: Any) -> RunState:
    values: dict[str, Any] = {
        "run": "r",
        "record": {"started_at": 100.0},
        "rebooted": False,
        "server_pid": None,
        "pids": [],
        "exit_status": None,
        "stop_requested": False,
        "outcome": None,
        "log_bytes": 0,
        "now": 160.0,
        **found,
    }
    return host_facts.run_state(values)


ALIVE = {"server_pid": 7, "pids": [6, 7, 8]}


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (ALIVE, "starting"),
        ({**ALIVE, "outcome": {"outcome": "ready"}}, "ready"),
        ({**ALIVE, "outcome": {"outcome": "not_ready"}}, "starting"),
        ({**ALIVE, "outcome": {"outcome": "crashed"}}, "crashed"),
        ({**ALIVE, "outcome": {"outcome": "died_after_ready"}}, "crashed"),
        ({"pids": [8]}, "dying"),
        ({"pids": [8], "outcome": {"outcome": "ready"}}, "dying"),
        ({"exit_status": 137}, "crashed"),
        ({"exit_status": 1, "outcome": {"outcome": "ready"}}, "crashed"),
        ({"exit_status": 0}, "ended"),
        ({"exit_status": 143, "stop_requested": True}, "stopped"),
        ({"exit_status": 137, "stop_requested": True, "outcome": {"outcome": "ready"}}, "stopped"),
        (
            {"exit_status": 143, "stop_requested": True, "outcome": {"outcome": "crashed"}},
            "crashed",
        ),
        ({"rebooted": True}, "rebooted"),
        ({"rebooted": True, "exit_status": 137}, "crashed"),
        ({"rebooted": True, "outcome": {"outcome": "ready"}}, "rebooted"),
    ],
)
def test_a_runs_state_in_one_word(found: dict[str, Any], state: str) -> None:
    assert run(**found).state == state


def test_uptime_is_by_the_hosts_clock_and_only_of_the_living() -> None:
    assert run(**ALIVE).uptime_s == 60.0
    assert run(exit_status=0).uptime_s is None


def test_the_holder_of_a_port_in_a_line() -> None:
    seen = host_facts.holder(
        {"pid": 7, "start": 1, "owner": "ann", "command": ["python", "-m", "sglang"], "run": None}
    )
    assert str(seen) == "pid 7 of ann: python -m sglang"
    hidden = host_facts.holder({"pid": 0, "owner": "?", "command": [], "run": None})
    assert "may not see" in str(hidden)
    assert host_facts.holder(None) is None


def test_an_answer_of_the_payload_becomes_facts(lab: HostSettings, local_host: LocalHost) -> None:
    facts = venv.survey(local_host, lab)
    assert facts.current is None
    assert facts.version("sglang") == "0.5.9" and facts.version("flashinfer-python") is None
    assert facts.no_gpus_because or facts.gpus
    assert json.dumps(facts.raw)
