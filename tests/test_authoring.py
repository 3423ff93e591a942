"""`inv patch.author`: edits made by hand become a patch set that gives the same bytes again."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml
from hosts import LocalHost
from hypothesis import given
from hypothesis import strategies as st
from patch_lab import ANSWER, CORE, HOOK, HOOK_FILE, QUANT, VERSIONS, PatchLab, sha256

from remote import authoring, patch_sets, patch_work
from remote.core import unified_diff
from remote.errors import ConfigError, PatchRefused
from remote.session import Session

ORIGINALS = VERSIONS["0.6.3"]
BY_HAND = (
    b"import os\r\n\n\ndef version():\n    return '12.9'  # caf\xe9\n    # no newline at the end"
)


class Author:
    """The venv of a test, a pip that finds the package's wheel, and a session."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.lab = PatchLab(folder)
        self.home = home
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        settings = home / ".config" / "pip" / "pip.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"[global]\nno-index = true\nfind-links = {self.wheels}\n")
        self.add_wheel("0.6.3")

    def add_wheel(self, version: str, **changed: bytes) -> None:
        info = f"flashinfer_python-{version}.dist-info"
        contents = {
            **VERSIONS[version],
            **{name.replace("__", "/") + ".py": content for name, content in changed.items()},
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: flashinfer-python\n"
            f"Version: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        rows = []
        path = self.wheels / f"flashinfer_python-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, content in contents.items():
                wheel.writestr(name, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
                rows.append(f"{name},sha256={digest.decode().rstrip('=')},{len(content)}\n")
            wheel.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")

    def session(self) -> Session:
        return self.lab.session(LocalHost(self.lab.settings, self.home))

    def elsewhere(self, folder: Path) -> tuple[PatchLab, Session]:
        """A fresh install with the same templates."""
        other = PatchLab(folder)
        shutil.rmtree(other.templates)
        other.templates.symlink_to(self.lab.templates)
        return other, other.session(LocalHost(other.settings, self.home))


@pytest.fixture
def author(tmp_path: Path, home: Path) -> Author:
    return Author(tmp_path / "lab", home)


def test_edits_become_a_set_that_gives_the_same_bytes_on_a_fresh_install(
    author: Author, tmp_path: Path
) -> None:
    lab, session = author.lab, author.session()
    lab.path(CORE).write_bytes(BY_HAND)
    lab.path("flashinfer/more.py").write_bytes(b"more = 1\n")
    made = authoring.author(session, "twelve-nine", summary="the CUDA version is 12.9")

    home = lab.templates / "patches" / "flashinfer" / "twelve-nine"
    assert sorted(path.name for path in home.iterdir()) == ["manifest.yaml", "twelve-nine.diff"]
    manifest = yaml.safe_load((home / "manifest.yaml").read_text())
    assert manifest["summary"] == "the CUDA version is 12.9"
    assert manifest["distribution"] == "flashinfer-python"
    assert manifest["versions"] == "==0.6.3"
    assert manifest["known"] == {CORE: [sha256(ORIGINALS[CORE])]}
    assert made["patch"] == "flashinfer/twelve-nine"

    other, fresh = author.elsewhere(tmp_path / "other")
    before = other.files()
    patch_work.apply(fresh, "twelve-nine")
    assert other.contents() == lab.contents()
    patch_work.rollback(fresh, None)
    assert other.files() == before


def test_where_it_was_authored_it_counts_as_applied_and_can_be_taken_back(author: Author) -> None:
    lab, session = author.lab, author.session()
    original = lab.contents()
    lab.path(CORE).write_bytes(BY_HAND)
    lab.path("flashinfer/more.py").write_bytes(b"more = 1\n")
    authoring.author(session, "mine/twelve")
    report = patch_work.verify(session)
    assert report["holds"] and report["applied"] == ["mine/twelve"]
    assert patch_work.apply(session, "mine/twelve")["changed"] == []
    assert lab.path(CORE).read_bytes() == BY_HAND
    rolled = patch_work.rollback(session, None)
    assert lab.contents() == original
    (core,) = [file for file in rolled["files"] if file["path"].endswith("core.py")]
    assert core["proven"] and core["sha256"] == core["record_sha256"]
    patch_work.apply(session, "mine/twelve")
    assert lab.path(CORE).read_bytes() == BY_HAND


def test_a_saved_original_needs_no_pip(author: Author) -> None:
    lab, session = author.lab, author.session()
    patch_work.apply(session, ANSWER)
    patch_work.rollback(session, None)
    for wheel in author.wheels.iterdir():
        wheel.unlink()
    lab.path(CORE).write_bytes(BY_HAND)
    authoring.author(session, "again")
    patch_work.rollback(session, None)
    assert lab.path(CORE).read_bytes() == ORIGINALS[CORE]


@pytest.mark.parametrize("wheel", ["none", "another"])
def test_without_an_original_nothing_is_made_and_the_hint_says_what_to_do(
    author: Author, wheel: str
) -> None:
    lab, session = author.lab, author.session()
    (author.wheels / "flashinfer_python-0.6.3-py3-none-any.whl").unlink()
    if wheel == "another":
        author.add_wheel("0.6.3", flashinfer__core=b"other = 1\n")
    lab.path(CORE).write_bytes(BY_HAND)
    with pytest.raises(PatchRefused, match=r"neither saved on the host nor to be had") as refusal:
        authoring.author(session, "lost")
    assert "flashinfer-python==0.6.3" in str(refusal.value.hint)
    saved = Path(lab.settings.state) / "patches" / "originals" / sha256(ORIGINALS[CORE])
    assert str(saved) in str(refusal.value.hint)
    assert "flashinfer/lost" not in patch_sets.names(session.folders)
    # What the hint says works.
    saved.parent.mkdir(mode=0o700, parents=True)
    saved.parent.parent.chmod(0o700)
    Path(lab.settings.state).chmod(0o700)
    saved.write_bytes(ORIGINALS[CORE])
    authoring.author(session, "lost")
    patch_work.rollback(session, None)
    assert lab.path(CORE).read_bytes() == ORIGINALS[CORE]


def test_an_edit_of_a_patched_file_stands_on_the_patch(author: Author, tmp_path: Path) -> None:
    lab, session = author.lab, author.session()
    patch_work.apply(session, ANSWER)
    by_hand = lab.path(CORE).read_bytes().replace(b"'12.9'", b"'13.0'")
    lab.path(CORE).write_bytes(by_hand)
    made = authoring.author(session, "mine/thirteen")
    assert made["stands_on"] == [ANSWER]
    assert patch_work.verify(session)["holds"]

    other, fresh = author.elsewhere(tmp_path / "other")
    with pytest.raises(PatchRefused, match=f"made on top of {ANSWER}"):
        patch_work.apply(fresh, "mine/thirteen")
    patch_work.apply(fresh, ANSWER)
    patch_work.apply(fresh, "mine/thirteen")
    assert other.path(CORE).read_bytes() == by_hand
    patch_work.rollback(fresh, "thirteen")
    assert b"'12.9'" in other.path(CORE).read_bytes()
    with pytest.raises(PatchRefused, match="made on top of"):
        patch_work.rollback(session, ANSWER)
    patch_work.rollback(session, None)
    assert lab.path(CORE).read_bytes() == ORIGINALS[CORE]


def test_a_set_that_is_not_what_was_applied_gives_no_base_for_an_edit(author: Author) -> None:
    lab, session = author.lab, author.session()
    patch_work.apply(session, ANSWER)
    lab.path(CORE).write_bytes(BY_HAND)
    diff = lab.templates / "patches" / ANSWER / "a.diff"
    diff.write_bytes(diff.read_bytes().replace(b"12.9", b"12.8"))
    with pytest.raises(PatchRefused, match="can't be told any more"):
        authoring.author(session, "mine/x")
    shutil.rmtree(diff.parent)
    with pytest.raises(PatchRefused, match="not known here"):
        authoring.author(session, "mine/x")


def test_what_patches_did_is_no_edit(author: Author) -> None:
    session = author.session()
    patch_work.apply(session, ANSWER)
    patch_work.apply(session, HOOK)
    with pytest.raises(ConfigError, match="nothing was edited by hand"):
        authoring.author(session, "none")


def test_a_file_of_another_version_is_compared_with_its_own_original(author: Author) -> None:
    lab, session = author.lab, author.session()
    patch_work.apply(session, ANSWER)
    lab.install("0.6.4")
    author.add_wheel("0.6.4")
    lab.path(CORE).write_bytes(BY_HAND)
    made = authoring.author(session, "mine/newer")
    assert made["versions"] == "==0.6.4" and made["stands_on"] == []
    patch_work.rollback(session, None)
    assert lab.path(CORE).read_bytes() == VERSIONS["0.6.4"][CORE]


def test_what_no_diff_can_hold_is_left_out_with_its_reason(author: Author) -> None:
    lab, session = author.lab, author.session()
    lab.path(CORE).write_bytes(BY_HAND)
    lab.path(QUANT).unlink()
    lab.path("flashinfer/empty.py").write_bytes(b"")
    lab.path("flashinfer/data.bin").write_bytes(b"\0\1")
    lab.path("flashinfer/core.py.orig").write_bytes(ORIGINALS[CORE])
    made = authoring.author(session, "some")
    assert [file["path"] for file in made["files"]] == [str(lab.path(CORE))]
    left_out = {Path(path).name: reason for path, reason in made["left_out"].items()}
    assert left_out.keys() == {"quant.py", "empty.py", "data.bin"}
    assert left_out["quant.py"] == "gone" and left_out["data.bin"] == "binary"


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "x.diff", "user/x", "-x", "a b"])
def test_names_that_are_none(author: Author, name: str) -> None:
    author.lab.path(CORE).write_bytes(BY_HAND)
    with pytest.raises(ConfigError, match="no name for a patch set"):
        authoring.author(author.session(), name)


def test_a_name_that_is_taken(author: Author) -> None:
    author.lab.path(CORE).write_bytes(BY_HAND)
    with pytest.raises(ConfigError, match="there is a patch set mine/answer already"):
        authoring.author(author.session(), ANSWER)
    # The built-in sets' names are taken too.
    with pytest.raises(ConfigError, match="already"):
        authoring.author(author.session(), "cuda-version")


def test_a_distribution_can_be_named(author: Author) -> None:
    lab, session = author.lab, author.session()
    lab.path(CORE).write_bytes(BY_HAND)
    with pytest.raises(ConfigError, match="nothing was edited by hand in sglang"):
        authoring.author(session, "x", distribution="sglang")
    with pytest.raises(ConfigError, match="none of the packages") as wrong:
        authoring.author(session, "x", distribution="numpy")
    assert "flashinfer-python 0.6.3" in wrong.value.evidence
    authoring.author(session, "x", distribution="flashinfer-python")


def test_a_change_meanwhile_leaves_no_set_behind(
    author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, session = author.lab, author.session()
    lab.path(CORE).write_bytes(BY_HAND)
    real = patch_sets.write

    def write(*args: object) -> Path:
        lab.path(CORE).write_bytes(b"# still at it\n")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(patch_sets, "write", write)
    with pytest.raises(PatchRefused, match="not what the plan was made for"):
        authoring.author(session, "early")
    assert "flashinfer/early" not in patch_sets.names(session.folders)
    assert patch_work.verify(session)["applied"] == []


class Checkout:
    """SGLang as developers install it: editable, from a git checkout."""

    def __init__(self, lab: PatchLab, folder: Path) -> None:
        self.root = folder
        self.file = folder / "python" / "sglang" / "layer.py"
        self.file.parent.mkdir(parents=True)
        self.file.write_bytes(b"def forward(x):\n    return x\n")
        (folder / "README.md").write_bytes(b"# SGLang\n")
        self.git("init", "-q")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "a commit")
        (info,) = lab.site.glob("sglang-*.dist-info")
        note = {"url": f"file://{folder}/python", "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(note))

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=tester", "-c", "user.email=tester@localhost")
        command = ["git", "-C", str(self.root), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_edits_in_a_checkout_come_from_git(author: Author, tmp_path: Path) -> None:
    lab, session = author.lab, author.session()
    checkout = Checkout(lab, tmp_path / "sglang")
    original = checkout.file.read_bytes()
    by_hand = b"def forward(x):\n    return x + 1\n"
    checkout.file.write_bytes(by_hand)
    new = checkout.file.with_name("new.py")
    new.write_bytes(b"new = 1\n")
    (checkout.root / "notes.txt").write_bytes(b"not tracked\n")
    checkout.git("add", "-N", "python/sglang/new.py")
    made = authoring.author(session, "plus-one")
    assert made["patch"] == "sglang/plus-one" and made["versions"] == "==0.5.9"
    diff = (lab.templates / "patches" / "sglang" / "plus-one" / "plus-one.diff").read_text()
    assert "+++ b/python/sglang/layer.py" in diff
    assert [Path(path).name for path in made["left_out"]] == ["notes.txt"]

    patch_work.rollback(session, None)
    assert checkout.file.read_bytes() == original and not new.exists()
    checkout.git("rm", "-q", "--cached", "python/sglang/new.py")
    assert checkout.git("status", "--porcelain") == "?? notes.txt\n"
    patch_work.apply(session, "plus-one")
    assert (checkout.file.read_bytes(), new.read_bytes()) == (by_hand, b"new = 1\n")
    with pytest.raises(ConfigError, match="nothing was edited"):
        authoring.author(session, "nothing-new")


def test_an_editable_source_without_git_is_refused_with_what_git_says(
    author: Author, tmp_path: Path
) -> None:
    checkout = Checkout(author.lab, tmp_path / "sglang")
    shutil.rmtree(checkout.root / ".git")
    with pytest.raises(PatchRefused, match="git does not say") as refusal:
        authoring.author(author.session(), "x", distribution="sglang")
    assert any("not a git repository" in line for line in refusal.value.evidence)


def test_a_hook_file_that_was_edited_is_the_sets_own_matter(author: Author) -> None:
    lab, session = author.lab, author.session()
    patch_work.apply(session, HOOK)
    lab.path(HOOK_FILE).write_bytes(b"hooked = False\n")
    with pytest.raises(ConfigError, match="nothing was edited"):
        authoring.author(session, "x")


LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"--- x\n", b"+++ y\n", b"@@ -1 +1 @@\n", b"\r\n"])
)


@given(LINES, LINES, st.sampled_from([b"", b"end", b"\\ No newline"]), st.booleans())
def test_a_diff_that_was_written_is_read_and_gives_the_same_bytes(
    old: list[bytes], new: list[bytes], end: bytes, both: bool
) -> None:
    before, after = b"".join(old) + (end if both else b""), b"".join(new) + end
    text = unified_diff.written(before, after, "pkg/a file.py")
    if before == after:
        assert text == b""
        return
    (diff,) = unified_diff.parse(text, "x")
    assert diff.path == "pkg/a file.py"
    assert unified_diff.apply(before, diff) == after
