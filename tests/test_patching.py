"""FlashInfer patched on a host and taken back: the plan's whole way, without SSH."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hosts import LocalHost, Venv

from remote import patch_sets, patching, venv
from remote.config import HostSettings
from remote.core.host_facts import HostFacts
from remote.errors import ConfigError, ConnectionLost, PatchRefused
from remote.patching import PatchPlan, PatchView

FILE = "flashinfer/jit/cpp_ext.py"
ORIGINAL = b"import torch\n\ndef get_cuda_version() -> Version:\n    return nvcc()\n"


class Patched:
    """A host with a FlashInfer to patch, and the folder of a user's own patch sets."""

    def __init__(self, host: LocalHost, installed: Venv, templates: Path) -> None:
        self.host = host
        self.venv = installed
        self.templates = templates
        self.file = installed.site / FILE
        self.install()

    def install(self, version: str = "0.6.3", content: bytes = ORIGINAL) -> None:
        for left in self.venv.site.glob("flashinfer_python-*/*"):
            left.unlink()
        for left in self.venv.site.glob("flashinfer_python-*"):
            left.rmdir()
        self.venv.install("flashinfer-python", version, {FILE: content})

    def author(
        self, name: str, old: str, new: str, versions: str = ">=0.6,<0.7", more: str = ""
    ) -> None:
        home = self.templates / "patches" / "mine" / name
        home.mkdir(parents=True)
        (home / "a.diff").write_text(
            f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1,1 +1,2 @@\n {old}\n+{new}\n"
        )
        (home / "manifest.yaml").write_text(
            f"summary: a test\ndistribution: flashinfer-python\nversions: '{versions}'\n"
            f"delivery: edit\nedits:\n  - a.diff\n{more}"
        )

    def look(self, *names: str) -> tuple[list[patch_sets.PatchSet], HostFacts, PatchView]:
        sets = [patch_sets.load(name, [self.templates]) for name in names]
        facts = venv.survey(self.host, self.host.settings)
        return sets, facts, patching.view(self.host, self.host.settings, sets)

    def plan(self, *names: str) -> PatchPlan:
        sets, facts, seen = self.look(*names)
        return patching.plan(sets, [], facts, seen)

    def apply(self, *names: str) -> PatchPlan:
        made = self.plan(*names)
        patching.commit(self.host, self.host.settings, made)
        return made

    def rollback(self) -> tuple[patching.Proof, ...]:
        _, facts, seen = self.look()
        made = patching.plan([], [], facts, seen)
        return patching.take_back(self.host, self.host.settings, made)


@pytest.fixture
def patched(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Patched:
    found = Patched(local_host, fake_venv, tmp_path / "templates")
    found.author("first", "def get_cuda_version() -> Version:", "    first()")
    found.author("second", "    first()", "    second()")
    return found


def test_a_patch_is_applied_and_taken_back_with_proof(patched: Patched) -> None:
    patched.apply("mine/first")
    assert b"    first()\n" in patched.file.read_bytes()
    _, _, seen = patched.look("mine/first")
    assert seen.applied == ("mine/first",) and not seen.drifted and not seen.interrupted
    (proof,) = patched.rollback()
    digest = hashlib.sha256(ORIGINAL).hexdigest()
    assert proof.holds and proof.sha256 == proof.recorded == digest
    assert patched.file.read_bytes() == ORIGINAL


def test_applied_twice_is_applied_once(patched: Patched) -> None:
    patched.apply("mine/first")
    assert patched.plan("mine/first").steps == ()
    assert patched.rollback() and patched.rollback() == ()


def test_two_sets_stack_and_one_goes(patched: Patched) -> None:
    patched.apply("mine/first", "mine/second")
    assert b"    first()\n    second()\n" in patched.file.read_bytes()
    patched.apply("mine/first")
    assert b"second" not in patched.file.read_bytes()
    patched.rollback()
    assert patched.file.read_bytes() == ORIGINAL


def test_a_set_for_other_versions_is_left_out_with_its_reason(patched: Patched) -> None:
    patched.install("0.7.1")
    made = patched.plan("mine/first")
    assert made.steps == () and made.sets == ()
    assert made.left_out[0][0] == "mine/first" and "0.7.1" in made.left_out[0][1]


def test_a_set_that_names_its_originals_takes_no_other(patched: Patched) -> None:
    digest = hashlib.sha256(ORIGINAL).hexdigest()
    patched.author("exact", "import torch", "exact()", more=f"known:\n  {FILE}: [{digest}]\n")
    patched.install("0.6.4", ORIGINAL + b"# next\n")
    with pytest.raises(PatchRefused, match="does not know") as refusal:
        patched.apply("mine/exact")
    assert f"known sha256 {digest}" in refusal.value.evidence
    patched.install("0.6.3", ORIGINAL)
    patched.apply("mine/exact")
    assert b"exact()" in patched.file.read_bytes()


def test_known_originals_are_read_with_care(patched: Patched) -> None:
    known = "known:\n  flashinfer/jit/cpp_exd.py: [abc]\n"
    patched.author("typo", "import torch", "exact()", more=known)
    with pytest.raises(ConfigError) as wrong:
        patched.look("mine/typo")
    assert len(wrong.value.evidence) == 2
    assert "did you mean flashinfer/jit/cpp_ext.py" in wrong.value.evidence[0]


def test_a_set_made_on_top_of_another_needs_it_first(patched: Patched) -> None:
    patched.author("third", "import torch", "third()", more="stands_on: [mine/first]\n")
    for names in (["mine/third"], ["mine/third", "mine/first"]):
        with pytest.raises(PatchRefused, match="made on top of mine/first"):
            patched.apply(*names)
    patched.apply("mine/first", "mine/third")
    assert b"third()" in patched.file.read_bytes()


def test_an_edit_by_hand_stands_in_the_way_of_both_directions(patched: Patched) -> None:
    patched.apply("mine/first")
    patched.file.write_bytes(b"# mine\n")
    for attempt in (lambda: patched.apply("mine/first"), patched.rollback):
        with pytest.raises(PatchRefused) as refusal:
            attempt()
        assert refusal.value.exit_code == 13
    assert patched.file.read_bytes() == b"# mine\n"
    _, _, seen = patched.look("mine/first")
    assert [file.path for file in seen.drifted] == [str(patched.file)]


def test_a_file_that_is_not_the_wheels_is_not_patched(patched: Patched) -> None:
    patched.file.write_bytes(b"# mine\n" + ORIGINAL)
    with pytest.raises(PatchRefused):
        patched.apply("mine/first")
    assert patched.file.read_bytes() == b"# mine\n" + ORIGINAL


@pytest.mark.parametrize("content", [ORIGINAL, b"# next\n" + ORIGINAL])
def test_a_reinstall_is_the_new_original(patched: Patched, content: bytes) -> None:
    patched.apply("mine/first")
    patched.install("0.6.4", content)
    patched.rollback()
    assert patched.file.read_bytes() == content
    patched.apply("mine/first")
    assert b"    first()\n" in patched.file.read_bytes()
    (proof,) = patched.rollback()
    assert proof.holds and patched.file.read_bytes() == content


def test_a_change_between_plan_and_commit_touches_nothing(
    patched: Patched, lab: HostSettings
) -> None:
    made = patched.plan("mine/first")
    patched.file.write_bytes(b"# mine\n")
    with pytest.raises(PatchRefused, match="not what the plan was made for"):
        patching.commit(patched.host, lab, made)
    assert patched.file.read_bytes() == b"# mine\n"
    assert not patched.look("mine/first")[2].applied


def test_a_connection_lost_in_a_commit_leaves_all_or_nothing(
    patched: Patched, lab: HostSettings
) -> None:
    made = patched.plan("mine/first")
    patched.host.cut()
    with pytest.raises(ConnectionLost):
        patching.commit(patched.host, lab, made)
    patched.host.close()
    assert patching.recover(patched.host, lab).undone == ()
    assert patched.file.read_bytes() == ORIGINAL
