"""One verdict over the logs of several nodes."""

from __future__ import annotations

from pathlib import Path

from remote.core.reading import Reading, read_log
from remote.core.several_logs import diagnose_together
from remote.core.verdict import Outcome, Role

CASES = Path(__file__).parents[1] / "cases"
HEAD = (
    "[2026-11-29 19:{minute}:14 {rank}] Scheduler hit an exception: "
    "Traceback (most recent call last):\n"
)
FRAME = (
    '  File "/v/site-packages/sglang/srt/model_executor/model_runner.py", line 1, in load_model\n'
)


def reading(text: str) -> Reading:
    return read_log([text.encode()])


def test_the_node_with_the_cause_decides_not_the_one_that_waited() -> None:
    waited = reading(
        HEAD.format(minute="00", rank="TP8")
        + FRAME
        + "RuntimeError: Timed out waiting 1800000ms for send operation to complete\n"
    )
    failed = reading(
        HEAD.format(minute="01", rank="TP0") + FRAME + "KeyError: 'model.layers.1.mlp.weight'\n"
    )
    found = diagnose_together({"node1.log": waited, "node0.log": failed})
    assert (found.kind, found.first_rank) == ("weights_mismatch", "TP0")
    assert found.ranks == {"TP0": Role.FAILED, "TP8": Role.COLLATERAL}
    assert found.evidence[0].as_dict() == {
        "log": "node0.log",
        "line": 3,
        "text": "KeyError: 'model.layers.1.mlp.weight'",
    }


def test_of_two_causes_the_earlier_one_decides() -> None:
    late, early = (
        reading(HEAD.format(minute=minute, rank=rank) + FRAME + error)
        for minute, rank, error in (
            ("05", "TP0", "KeyError: 'model.layers.1.mlp.weight'\n"),
            ("01", "TP1", "OSError: [Errno 28] No space left on device\n"),
        )
    )
    assert diagnose_together({"a": late, "b": early}).kind == "disk_or_permission"


def test_healthy_nodes_are_healthy_together() -> None:
    log = (CASES / "server_log/real/piecewise.log").read_bytes()
    found = diagnose_together({"a": read_log([log]), "b": read_log([log])})
    assert (found.outcome, found.kind) == (Outcome.READY, None)
