"""Installed files changed all together or not at all, whatever happens on the way."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import py_compile
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.payload import files, patches
from remote.payload.refusal import Refused


def digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


class Site:
    """Some installed files, and the state folder beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "site"
        self.state = str(folder / "state")
        self.folder.mkdir()

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def put(self, name: str, content: bytes, mode: int = 0o644) -> None:
        (self.folder / name).write_bytes(content)
        (self.folder / name).chmod(mode)

    def now(self) -> dict[str, tuple[bytes, int]]:
        """Every file there, with its mode; what a killed write left included."""
        return {
            path.name: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
            for path in sorted(self.folder.iterdir())
            if path.is_file()
        }

    def step(self, name: str, after: bytes | None) -> tuple[dict[str, Any], bytes]:
        """As the client sends it: the saved original's bytes stay where they are."""
        now = files.read(self.path(name))
        before = now.sha256 if now else None
        known = patches.journal(self.state).get(self.path(name))
        original = known["original"] if known else before
        saved = after is None or digest(after) == original
        step = {
            "path": self.path(name),
            "before": before,
            "after": digest(after),
            "original": original,
            "bytes": None if saved else len(after or b""),
            "sets": ["a-set"],
        }
        return step, b"" if saved else after or b""

    def commit(self, **after: bytes | None) -> None:
        """Bring files to these contents; a dot in a name is written as two underscores."""
        self.send(*(self.step(name.replace("__", "."), new) for name, new in after.items()))

    def send(self, *steps: tuple[dict[str, Any], bytes]) -> None:
        patches.commit(
            self.state,
            [step for step, _ in steps],
            sets=["a-set"],
            data=b"".join(data for _, data in steps),
        )

    def rollback(self) -> None:
        """As the client plans it: every file of the journal to its original."""
        steps = []
        for path, entry in patches.journal(self.state).items():
            now = files.read(path)
            step = {
                "path": path,
                "before": now.sha256 if now else None,
                "after": entry["original"],
                "original": entry["original"],
                "bytes": None,
                "sets": [],
            }
            steps.append(step)
        patches.commit(self.state, steps, sets=[], data=b"")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    found = Site(tmp_path)
    found.put("a.py", b"a = 1\n", 0o640)
    found.put("b.py", b"b = 1\n", 0o755)
    found.put("gone.py", b"g = 1\n", 0o600)
    return found


CHANGES: dict[str, bytes | None] = {
    "a__py": b"a = 2\n",
    "b__py": b"b = 2\n",
    "made__py": b"m = 1\n",
    "gone__py": None,
}


def test_a_commit_changes_every_file_and_keeps_mode_and_owner(site: Site) -> None:
    site.commit(**CHANGES)
    assert site.now() == {
        "a.py": (b"a = 2\n", 0o640),
        "b.py": (b"b = 2\n", 0o755),
        "made.py": (b"m = 1\n", 0o644),
    }
    found = files.read(site.path("a.py"))
    assert found is not None and (found.uid, found.gid) == (os.geteuid(), os.getegid())


def test_an_owner_that_is_not_ours_is_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given_to: list[tuple[int, int]] = []
    real = os.fchown

    def fchown(fd: int, uid: int, gid: int) -> None:
        given_to.append((uid, gid))
        real(fd, uid, gid)

    found = files.read(site.path("a.py"))
    assert found is not None
    monkeypatch.setattr(os, "getegid", lambda: found.gid + 1)
    monkeypatch.setattr(os, "fchown", fchown)
    site.commit(a__py=b"a = 2\n")
    assert given_to == [(found.uid, found.gid)]


def test_a_rollback_returns_bytes_and_modes_and_empties_the_journal(site: Site) -> None:
    before = site.now()
    site.commit(**CHANGES)
    site.rollback()
    assert site.now() == before
    assert patches.journal(site.state) == {}


def test_a_rollback_after_two_changes_returns_the_first_bytes(site: Site) -> None:
    before = site.now()
    site.commit(**CHANGES)
    site.commit(a__py=b"a = 3\n", made__py=b"m = 2\n")
    site.rollback()
    assert site.now() == before


def test_the_original_is_saved_privately(site: Site) -> None:
    site.commit(a__py=b"a = 2\n")
    saved = Path(site.state) / "patches" / "originals" / str(digest(b"a = 1\n"))
    assert saved.read_bytes() == b"a = 1\n"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_a_file_that_somebody_changed_is_refused_and_nothing_is_touched(site: Site) -> None:
    steps = [site.step("a.py", b"a = 2\n"), site.step("b.py", b"b = 2\n")]
    site.put("b.py", b"b = 'by hand'\n")
    before = site.now()
    with pytest.raises(Refused, match="not what the plan was made for") as refusal:
        site.send(*steps)
    assert refusal.value.kind == "PatchRefused"
    assert site.now() == before
    assert patches.pending(site.state) is None


def test_a_damaged_saved_original_is_not_put_back(site: Site) -> None:
    site.commit(a__py=b"a = 2\n")
    saved = Path(site.state) / "patches" / "originals" / str(digest(b"a = 1\n"))
    saved.write_bytes(b"a = 'other'\n")
    with pytest.raises(Refused, match="damaged"):
        site.rollback()
    assert site.now()["a.py"][0] == b"a = 2\n"


def test_a_damaged_saved_original_is_saved_anew_while_the_file_is_still_there(site: Site) -> None:
    before = site.now()
    site.commit(a__py=b"a = 2\n")
    saved = Path(site.state) / "patches" / "originals" / str(digest(b"a = 1\n"))
    site.rollback()
    saved.write_bytes(b"")
    site.commit(a__py=b"a = 2\n")
    site.rollback()
    assert site.now() == before


def test_stale_bytecode_goes_with_every_change(site: Site) -> None:
    compiled = py_compile.compile(
        site.path("a.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    other = py_compile.compile(site.path("b.py"))
    assert compiled is not None and other is not None
    site.commit(a__py=b"a = 2\n")
    assert not Path(compiled).exists() and Path(other).exists()
    py_compile.compile(
        site.path("a.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    site.rollback()
    assert not Path(compiled).exists()


def test_wheels_record_what_an_original_was(site: Site) -> None:
    info = site.folder / "pkg-1.0.dist-info"
    info.mkdir()
    content = b"a = 1\n"
    word = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f'a.py,sha256={word},6\n"with,comma.py",,\nb.py,md5=x,1\n')
    found = patches.recorded(str(site.folder), [site.path("a.py"), site.path("b.py")])
    assert found == {site.path("a.py"): digest(content)}


#: The calls by which `patches` and `files` change a file system, and some that only look.
CALLS = ("open", "fsync", "fchmod", "fchown", "replace", "unlink")


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run it in a fork that ends without any clean-up before its ``number``-th call.

    False: it came to its end before.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def dying(real: Callable[..., Any], *args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os._exit(1)
            return real(*args, **more)

        for name in CALLS:
            setattr(os, name, partial(dying, getattr(os, name)))
        try:
            work()
        except BaseException:
            os._exit(2)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status != 2, "it failed by itself"
    return status == 1


@contextmanager
def failing_at(number: int, failure: OSError) -> Iterator[list[int]]:
    """The ``number``-th such call fails, and the rest goes on; gives the count of calls made."""
    count = [0]

    def failing(real: Callable[..., Any], *args: Any, **more: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            raise failure
        return real(*args, **more)

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, partial(failing, getattr(os, name)))
        yield count


def test_killed_at_any_step_everything_is_as_before_or_as_after(tmp_path: Path) -> None:
    before = after = None
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        site = Site(folder)
        site.put("a.py", b"a = 1\n", 0o640)
        site.put("b.py", b"b = 1\n", 0o755)
        site.put("gone.py", b"g = 1\n", 0o600)
        before = site.now()
        killed = killed_at(number, partial(site.commit, **CHANGES))
        patches.recover(site.state)
        known, now = patches.journal(site.state), site.now()
        assert patches.pending(site.state) is None
        if known:
            after = after or now
            assert now == after != before
        else:
            assert now == before
        site.rollback()
        assert site.now() == before
        if not killed:
            break
    assert number > 30


CHANGES_OF_TWO: dict[str, bytes | None] = {
    "a__py": b"a = 2\n",
    "made__py": b"m = 1\n",
    "gone__py": None,
}


def small_site(folder: Path) -> Site:
    folder.mkdir()
    site = Site(folder)
    site.put("a.py", b"a = 1\n", 0o640)
    site.put("gone.py", b"g = 1\n", 0o600)
    return site


def longest_way_in(folder: Path) -> int:
    """Where to kill `CHANGES_OF_TWO` so that every file is changed and the journal is not."""
    for number in itertools.count(1):
        site = small_site(folder / str(number))
        assert killed_at(number, partial(site.commit, **CHANGES_OF_TWO))
        if patches.pending(site.state) and site.now().keys() == {"a.py", "made.py"}:
            return number
    raise AssertionError


def test_an_undo_killed_at_any_step_can_be_taken_up_again(tmp_path: Path) -> None:
    (tmp_path / "tries").mkdir()
    within = longest_way_in(tmp_path / "tries")
    for number in itertools.count(1):
        site = small_site(tmp_path / str(number))
        before = site.now()
        assert killed_at(within, partial(site.commit, **CHANGES_OF_TWO))
        killed = killed_at(number, partial(patches.recover, site.state))
        patches.recover(site.state)
        assert site.now() == before
        if not killed:
            break
    assert number > 10


def test_a_failure_at_any_step_is_told_and_everything_is_put_back(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    for number in itertools.count(1):
        site = small_site(tmp_path / str(number))
        before = site.now()
        with failing_at(number, full) as count:
            try:
                site.commit(**CHANGES_OF_TWO)
            except OSError as error:
                assert error is full
            except Refused as refusal:
                assert "No space left" in refusal.message
        if count[0] < number:
            break
        patches.recover(site.state)
        if patches.journal(site.state):
            site.rollback()
        assert site.now() == before
    assert number > 30


def test_an_undo_that_fails_too_does_not_hide_the_first_failure(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace(source: str, target: str) -> None:
        if target.endswith("b.py"):
            monkeypatch.setattr(os, "replace", broken)
            raise OSError(28, "No space left on device")
        real(source, target)

    def broken(source: str, target: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Refused, match=r"No space left.*failed too.*Input/output") as refusal:
        site.commit(**CHANGES)
    assert refusal.value.kind == "PatchRefused" and refusal.value.hint
    monkeypatch.setattr(os, "replace", real)
    assert patches.recover(site.state)["undone"] == [site.path("a.py")]
    assert patches.pending(site.state) is None


def test_an_interrupted_transaction_is_shown_and_undone_by_the_next_commit(site: Site) -> None:
    before = site.now()
    changing = ("a.py", "b.py", "gone.py", "made.py")
    for number in itertools.count(1):
        assert killed_at(number, partial(site.commit, **CHANGES))
        if patches.pending(site.state) and site.now() != before:
            break
    rows, _ = patches.look(site.state, [], "/no/venv", [], [])
    assert sorted(rows["files"]) == sorted(map(site.path, changing))
    step, data = site.step("b.py", b"b = 9\n")
    step["before"] = step["original"] = digest(b"b = 1\n")
    site.send((step, data))
    assert site.now() == {**before, "b.py": (b"b = 9\n", 0o755)}
    assert list(patches.journal(site.state)) == [site.path("b.py")]


def test_a_reinstall_in_the_middle_of_a_transaction_is_taken_for_the_original(site: Site) -> None:
    before = site.now()
    site.commit(a__py=b"a = 2\n", b__py=b"b = 2\n")
    for number in itertools.count(1):
        assert killed_at(number, partial(site.commit, a__py=b"a = 3\n", b__py=b"b = 3\n"))
        if patches.pending(site.state):
            break
    site.put("a.py", b"a = 1\n", 0o640)
    patches.recover(site.state)
    assert site.now()["a.py"][0] == b"a = 1\n"
    site.rollback()
    assert site.now() == before


def test_a_foreign_change_in_the_middle_of_a_transaction_is_not_overwritten(site: Site) -> None:
    for number in itertools.count(1):
        assert killed_at(number, partial(site.commit, **CHANGES))
        if patches.pending(site.state):
            break
    site.put("a.py", b"by hand\n")
    with pytest.raises(Refused, match="changed by somebody else") as refusal:
        patches.recover(site.state)
    assert refusal.value.hint
    assert site.now()["a.py"][0] == b"by hand\n"


def test_a_foreign_change_in_the_middle_can_be_put_back_and_is_kept(site: Site) -> None:
    before = site.now()
    interrupt(site)
    site.put("a.py", b"by hand\n", 0o640)
    found = patches.recover(site.state, over_edits=True)
    assert found["kept"] == {site.path("a.py"): digest(b"by hand\n")}
    assert patches.saved_original(site.state, str(digest(b"by hand\n"))) == b"by hand\n"
    assert site.now() == before and patches.pending(site.state) is None


def interrupt(site: Site) -> None:
    """Kill a commit of `CHANGES` when the first file is written and the journal is not."""
    before = site.now()
    for number in itertools.count(1):
        assert killed_at(number, partial(site.commit, **CHANGES))
        if patches.pending(site.state) and site.now()["a.py"] != before["a.py"]:
            return


@pytest.mark.parametrize("newer", [b"a = 'newer'\n", None])
def test_what_pip_did_in_the_middle_of_a_transaction_stays(
    tmp_path: Path, newer: bytes | None
) -> None:
    """Another version came, with another such file or without one."""
    folder = tmp_path / "venv"
    folder.mkdir()
    site = Site(folder)
    site.folder = folder / "site-packages"
    site.folder.mkdir()
    for name in ("a.py", "b.py", "gone.py"):
        site.put(name, name.encode())
    interrupt(site)
    row = ""
    (site.folder / "a.py").unlink()
    if newer is not None:
        site.put("a.py", newer)
        word = base64.urlsafe_b64encode(hashlib.sha256(newer).digest()).rstrip(b"=").decode()
        row = f"a.py,sha256={word},\n"
    (site.folder / "pkg-2.dist-info").mkdir()
    (site.folder / "pkg-2.dist-info" / "RECORD").write_text(row)
    patches.recover(site.state)
    now = {name: content for name, (content, _) in site.now().items()}
    kept = {} if newer is None else {"a.py": newer}
    assert now == {**kept, "b.py": b"b.py", "gone.py": b"gone.py"}
    assert patches.pending(site.state) is None and patches.journal(site.state) == {}


ACTIONS = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from(["a", "b", "new"]), st.sampled_from([b"2", b"3"])),
    st.tuples(st.just("killed"), st.integers(1, 60), st.sampled_from([b"2", b"3"])),
    st.tuples(st.just("rollback"), st.none(), st.none()),
    st.tuples(st.just("edit"), st.sampled_from(["a", "b"]), st.just(b"by hand")),
    st.tuples(st.just("reinstall"), st.none(), st.none()),
)


@settings(max_examples=60)
@given(st.lists(ACTIONS, max_size=7))
def test_whatever_happens_a_rollback_returns_the_originals_or_refuses(
    actions: list[tuple[str, Any, Any]],
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        site = Site(folder)
        originals = {"a.py": b"a1", "b.py": b"b1"}

        def install() -> None:
            for name, content in originals.items():
                site.put(name, content)

        install()
        edited = False
        for action, what, content in actions:
            try:
                if action == "commit":
                    patches.recover(site.state)
                    site.commit(**{f"{what}__py": what.encode() + content})
                elif action == "killed":
                    patches.recover(site.state)
                    killed_at(what, partial(site.commit, a__py=content, new__py=content))
                elif action == "rollback":
                    patches.recover(site.state)
                    site.rollback()
                elif action == "edit":
                    # One that isn't patched would be refused by the plan, by its hash.
                    if site.path(f"{what}.py") in patches.journal(site.state):
                        site.put(f"{what}.py", content)
                        edited = True
                else:
                    install()
                    edited = False
            except Refused as refusal:
                assert refusal.kind == "PatchRefused" and refusal.hint
        try:
            patches.recover(site.state)
            site.rollback()
        except Refused as refusal:
            assert refusal.kind == "PatchRefused" and refusal.hint
            assert edited
            return
        now = {name: content for name, (content, _) in site.now().items()}
        if not edited:
            assert now == originals
        assert patches.journal(site.state) == {}
    finally:
        shutil.rmtree(folder)
