"""Two people on one host, against each other; fifty rounds: `python -m tests.two_clients`."""

from __future__ import annotations

from pathlib import Path

from rig import OpenSSH
from two_clients import Contest


def test_one_wins_the_other_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    sshd = OpenSSH(tmp_path / "sshd")
    sshd.start()
    contest = Contest(tmp_path / "lab", sshd, seed=3)
    try:
        contest.fight(10)
    finally:
        contest.lab.close()
        sshd.stop()
    done = [what for what in contest.ends if what.endswith("done")]
    assert len(done) == 4 and any(what.endswith("refused") for what in contest.ends)
