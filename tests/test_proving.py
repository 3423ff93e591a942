"""Patches are proven after every apply, once for what is installed, or put back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv

from remote import deploy, patch_sets, patching, probe, venv
from remote.core.trace_report import OpTrace, Outcome, SymbolProof
from remote.errors import ConnectionLost, PatchRefused, PreflightFailed
from remote.patching import PatchPlan, PatchView
from remote.proving import PatchProof

FILE = "flashinfer/core.py"
ORIGINAL = b"one\ntwo\n"


class Bench:
    """A host, a hook and an edit to apply, and a scanner that says what the test wants."""

    def __init__(self, host: LocalHost, installed: Venv, templates: Path) -> None:
        self.host, self.venv, self.templates = host, installed, templates
        self.asked: list[tuple[str, ...]] = []
        self.outcome = Outcome.TRACES
        self.ours = True
        self.failure: Exception | None = None
        installed.install("flashinfer-python", "0.6.3", {FILE: ORIGINAL})
        self._author("hook", "delivery: hook\nfiles: [ours.py]\nverdict: works")
        self._author("edit", "delivery: edit\nedits: [a.diff]\nverdict: fails\noutcome: known")

    def _author(self, name: str, more: str) -> None:
        home = self.templates / "patches" / "mine" / name
        home.mkdir(parents=True)
        (home / "ours.py").write_text("# ours\n")
        (home / "a.diff").write_text(f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1 +1,2 @@\n one\n+more\n")
        (home / "manifest.yaml").write_text(
            "summary: a test\ndistribution: flashinfer-python\nversions: '>=0.6'\n"
            f"symbols: [flashinfer.quantize]\n{more}\n"
        )

    def prove(self, *given: Any) -> tuple[SymbolProof, ...]:
        symbols: Sequence[str] = given[3]
        self.asked.append(tuple(symbols))
        if self.failure is not None:
            raise self.failure
        return tuple(
            SymbolProof(name, self.ours, OpTrace(name, self.outcome, "why")) for name in symbols
        )

    def plan(self, *names: str) -> tuple[PatchPlan, PatchView]:
        sets = [patch_sets.load(name, [self.templates]) for name in names]
        facts = venv.survey(self.host, self.host.settings)
        seen = patching.view(self.host, self.host.settings, sets)
        return patching.plan([], sets, facts, seen), seen

    def apply(self, *names: str) -> tuple[PatchProof, ...]:
        made, seen = self.plan(*names)
        facts = venv.survey(self.host, self.host.settings)
        told: list[str] = []
        return deploy.apply_patches(self.host, self.host.settings, facts, made, seen, told.append)

    @property
    def standing(self) -> set[str]:
        """What is patched now, by looking at the files."""
        found = {"hook"} if (self.venv.site / "ours.py").exists() else set()
        return found | ({"edit"} if b"more" in (self.venv.site / FILE).read_bytes() else set())


@pytest.fixture
def bench(
    local_host: LocalHost, fake_venv: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    made = Bench(local_host, fake_venv, tmp_path / "templates")
    monkeypatch.setattr(probe, "prove", made.prove)
    return made


def test_proven_once_for_what_is_installed(bench: Bench) -> None:
    (proof,) = bench.apply("hook")
    assert proof.against == () and bench.standing == {"hook"}
    (known,) = bench.apply("hook")  # nothing to write, proven already
    assert known.before and len(bench.asked) == 1
    bench.venv.install("torchvision", "0.99", {})  # the venv is another one now
    (again,) = bench.apply("hook")
    assert not again.before and len(bench.asked) == 2


def test_what_is_written_again_byte_for_byte_was_proven_before(bench: Bench) -> None:
    bench.apply("hook")
    (bench.venv.site / "ours.py").unlink()  # as a clean-up might
    (proof,) = bench.apply("hook")
    assert proof.before and len(bench.asked) == 1
    assert bench.standing == {"hook"}


def test_other_patched_files_beside_it_make_another_proof(bench: Bench) -> None:
    bench.apply("hook")
    first, second = bench.apply("hook", "edit")
    assert not first.before and not second.before and len(bench.asked) == 3
    (alone,) = bench.apply("hook")
    assert alone.before and len(bench.asked) == 3


@pytest.mark.parametrize("ours, outcome", [(False, Outcome.TRACES), (True, Outcome.TRAP)])
def test_not_proven_is_put_back(bench: Bench, ours: bool, outcome: Outcome) -> None:
    bench.ours, bench.outcome = ours, outcome
    with pytest.raises(PatchRefused, match="not proven, and was put back") as refused:
        bench.apply("hook")
    assert refused.value.exit_code == 13
    assert any("flashinfer.quantize" in line for line in refused.value.evidence)
    assert bench.standing == set()
    bench.ours, bench.outcome = True, Outcome.TRACES
    assert bench.apply("hook") and bench.standing == {"hook"}


def test_a_set_that_is_known_to_fail_needs_no_trace_but_its_own_function(bench: Bench) -> None:
    bench.outcome = Outcome.TRAP
    (proof,) = bench.apply("edit")
    assert proof.against == () and bench.standing == {"edit"}
    bench.ours = False
    with pytest.raises(PatchRefused):
        bench.apply("hook")
    assert bench.standing == {"edit"}  # as it was before


def test_a_scanner_that_cannot_run_proves_nothing(bench: Bench) -> None:
    bench.failure = PreflightFailed("it doesn't import any more")
    with pytest.raises(PreflightFailed):
        bench.apply("edit")
    assert bench.standing == set()


@pytest.mark.parametrize("cut", [KeyboardInterrupt(), ConnectionLost("gone")])
def test_a_proof_cut_short_is_made_up_for(bench: Bench, cut: Exception) -> None:
    bench.failure = cut
    with pytest.raises(type(cut)):
        bench.apply("hook")
    assert bench.standing == {"hook"}
    bench.failure = None
    assert [proof.patch for proof in bench.apply("hook")] == ["mine/hook"]
