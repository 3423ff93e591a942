"""`inv patch.verify`: what the files of the applied sets are now, and the exit code for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import LocalHost
from patch_lab import ANSWER, BOTH, CORE, HOOK, HOOK_FILE, QUANT, VERSIONS, PatchLab, sha256

from remote import patch_work
from remote.session import Session


@pytest.fixture
def lab_session(tmp_path: Path, home: Path) -> tuple[PatchLab, Session]:
    lab = PatchLab(tmp_path / "lab")
    return lab, lab.session(LocalHost(lab.settings, home))


def states(report: dict[str, object], lab: PatchLab) -> dict[str, str]:
    rows = report["files"]
    assert isinstance(rows, list)
    return {str(Path(row["path"]).relative_to(lab.site)): row["state"] for row in rows}


def test_nothing_applied_holds(lab_session: tuple[PatchLab, Session]) -> None:
    report = patch_work.verify(lab_session[1])
    assert report == {"applied": [], "interrupted": False, "files": [], "holds": True}


def test_what_is_applied_is_shown_with_its_hashes(lab_session: tuple[PatchLab, Session]) -> None:
    lab, session = lab_session
    for name in (ANSWER, BOTH, HOOK):
        patch_work.apply(session, name)
    report = patch_work.verify(session)
    assert report["holds"] and report["applied"] == [ANSWER, BOTH, HOOK]
    assert states(report, lab) == {CORE: "patched", QUANT: "patched", HOOK_FILE: "patched"}
    (core,) = [row for row in report["files"] if row["path"].endswith("core.py")]
    assert core["sets"] == [ANSWER, BOTH]
    assert core["sha256"] == core["patched_sha256"] == sha256(lab.path(CORE).read_bytes())
    assert core["original_sha256"] == core["record_sha256"] == sha256(VERSIONS["0.6.3"][CORE])
    shown = session.display.text  # type: ignore[attr-defined]
    assert core["sha256"] in shown and "as the wheel's RECORD has it" in shown


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda lab: lab.path(CORE).write_bytes(b"# mine\n"), "patched but altered"),
        (lambda lab: lab.path(CORE).unlink(), "missing"),
        (lambda lab: lab.install("0.6.3"), "original"),
        (lambda lab: lab.install("0.6.4"), "reinstalled"),
    ],
)
def test_a_file_that_drifted_does_not_hold(
    lab_session: tuple[PatchLab, Session], change: object, state: str
) -> None:
    lab, session = lab_session
    patch_work.apply(session, ANSWER)
    assert callable(change)
    change(lab)
    report = patch_work.verify(session)
    assert not report["holds"]
    assert states(report, lab) == {CORE: state}
    shown = session.display.text  # type: ignore[attr-defined]
    assert "rollback-patch" in shown
