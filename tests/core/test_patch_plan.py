"""Wanted sets × files as found: exact writes, or a refusal that says whose change is in the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remote.core import patch_plan, unified_diff
from remote.core.patch_plan import (
    Entry,
    FileEdit,
    FileState,
    Found,
    Step,
    WantedSet,
    sha256,
    state,
)
from remote.errors import PatchRefused

PATH = "/venv/site/pkg/mod.py"
ORIGINAL = b"one\ntwo\nthree\n"
FIRST = b"one\n1.5\ntwo\nthree\n"
BOTH = b"one\n1.5\ntwo\nTHREE\n"


def diff_of(old: bytes, new: bytes) -> unified_diff.FileDiff:
    text = unified_diff.between(old, new, "pkg/mod.py").encode()
    (diff,) = unified_diff.parse(text, "a.diff")
    return diff


def edit(name: str, old: bytes, new: bytes) -> WantedSet:
    return WantedSet(name, (FileEdit(PATH, diff=diff_of(old, new)),))


A = edit("a", ORIGINAL, FIRST)
B = edit("b", FIRST, BOTH)
OURS = WantedSet("hook", (FileEdit(PATH, content=b"ours\n"),))


def found(
    now: bytes | None,
    original: bytes | None = ORIGINAL,
    current: bytes | None = None,
    sets: tuple[str, ...] = (),
    recorded: bytes | None = None,
) -> Found:
    """A file with a journal entry where sets are given."""
    entry = Entry(sha256(original), sha256(current), sets) if sets else None
    base = original if entry else now
    return Found(PATH, sha256(now), sha256(recorded), entry, base)


def plan(wanted: list[WantedSet], file: Found, *, over_edits: bool = False) -> tuple[Step, ...]:
    return patch_plan.plan(wanted, {PATH: file}, over_edits=over_edits)


def test_an_untouched_file_gets_the_patch() -> None:
    (step,) = plan([A], found(ORIGINAL))
    assert (step.content, step.sets) == (FIRST, ("a",))
    assert (step.before, step.after) == (sha256(ORIGINAL), sha256(FIRST))
    assert step.original == sha256(ORIGINAL)


def test_what_is_applied_already_needs_nothing() -> None:
    assert plan([A], found(FIRST, current=FIRST, sets=("a",))) == ()
    assert plan([], found(ORIGINAL)) == ()


def test_sets_stack_on_one_file_in_their_order() -> None:
    (step,) = plan([A, B], found(ORIGINAL))
    assert (step.content, step.sets) == (BOTH, ("a", "b"))
    with pytest.raises(PatchRefused):
        plan([B, A], found(ORIGINAL))


def test_a_second_set_starts_from_the_saved_original() -> None:
    (step,) = plan([A, B], found(FIRST, current=FIRST, sets=("a",)))
    assert (step.content, step.original) == (BOTH, sha256(ORIGINAL))


def test_a_set_that_is_not_wanted_any_more_goes() -> None:
    (step,) = plan([A], found(BOTH, current=BOTH, sets=("a", "b")))
    assert (step.content, step.sets) == (FIRST, ("a",))
    (step,) = plan([], found(FIRST, current=FIRST, sets=("a",)))
    assert (step.after, step.sets) == (sha256(ORIGINAL), ())


def test_a_file_that_pip_put_back_is_patched_again_or_forgotten() -> None:
    file = found(ORIGINAL, current=FIRST, sets=("a",))
    (step,) = plan([A], file)
    assert (step.before, step.after) == (sha256(ORIGINAL), sha256(FIRST))
    (step,) = plan([], file)
    assert step.before == step.after == sha256(ORIGINAL) and step.sets == ()


def test_a_file_of_another_version_that_was_edited_is_no_place_for_the_old_original() -> None:
    file = found(b"by hand\n", current=FIRST, sets=("a",), recorded=b"next version\n")
    assert file.reinstalled and state(file) is FileState.UNEXPECTED
    (step,) = plan([], replace(file, base=b"by hand\n"))
    assert step.before == step.after == step.original == sha256(b"by hand\n")
    with pytest.raises(PatchRefused, match="does not know"):
        plan([A], replace(file, base=b"by hand\n"))


def test_a_file_that_went_with_its_package_is_not_made_again() -> None:
    entry = Entry(sha256(ORIGINAL), sha256(FIRST), ("a",))
    file = Found(PATH, None, None, entry, base=None, in_site=True)
    assert file.reinstalled and state(file) is FileState.MISSING
    (step,) = plan([], file)
    assert step.before is step.after is step.original is None and step.sets == ()
    # Removed by hand, its package still names it: it comes back.
    file = Found(PATH, None, sha256(ORIGINAL), entry, base=ORIGINAL, in_site=True)
    (step,) = plan([], file, over_edits=True)
    assert step.content == ORIGINAL


def test_an_edit_by_hand_is_not_written_over() -> None:
    file = found(b"by hand\n", current=FIRST, sets=("a",))
    for wanted in ([A], []):
        with pytest.raises(PatchRefused, match="changed after") as refusal:
            plan(wanted, file)
        assert refusal.value.exit_code == 13 and refusal.value.hint
        assert any(str(sha256(b"by hand\n")) in line for line in refusal.value.evidence)


def test_a_patched_file_that_somebody_removed_is_not_made_again() -> None:
    with pytest.raises(PatchRefused, match="changed after"):
        plan([A], found(None, current=FIRST, sets=("a",)))


def test_a_file_that_is_not_the_wheels_is_refused() -> None:
    edited = b"zero\n" + ORIGINAL
    with pytest.raises(PatchRefused, match="does not know"):
        plan([A], found(edited, recorded=ORIGINAL))
    (step,) = plan([A], found(edited))  # an editable install has no RECORD
    assert step.content == b"zero\n" + FIRST


def test_a_set_that_names_its_originals_takes_no_other() -> None:
    (piece,) = A.edits
    only = WantedSet("a", (FileEdit(PATH, piece.diff, known=frozenset({"0" * 64})),))
    with pytest.raises(PatchRefused, match="does not know"):
        plan([only], found(ORIGINAL))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(PatchRefused, match=r"needs .*mod\.py"):
        plan([A], found(None))


def test_a_file_of_our_own_comes_and_goes() -> None:
    (step,) = plan([OURS], found(None))
    assert (step.before, step.content, step.original) == (None, b"ours\n", None)
    (step,) = plan([], found(b"ours\n", original=None, current=b"ours\n", sets=("hook",)))
    assert (step.after, step.content) == (None, None)


def test_a_file_of_our_own_does_not_replace_somebody_elses() -> None:
    with pytest.raises(PatchRefused, match="there already"):
        plan([OURS], found(b"theirs\n"))


def test_a_diff_that_makes_a_file_does_not_write_into_one_that_is_there() -> None:
    makes = WantedSet("a", (FileEdit(PATH, diff=diff_made(b"new\n")),))
    (step,) = plan([makes], found(None))
    assert (step.before, step.content) == (None, b"new\n")
    with pytest.raises(PatchRefused, match="there already"):
        plan([makes], found(b"theirs\n"))


def diff_made(content: bytes) -> unified_diff.FileDiff:
    body = b"".join(b"+" + line for line in content.splitlines(keepends=True))
    head = b"--- /dev/null\n+++ b/pkg/mod.py\n@@ -0,0 +1,%d @@\n" % content.count(b"\n")
    (diff,) = unified_diff.parse(head + body, "a.diff")
    return diff


def test_a_diff_that_removes_a_file_removes_it_and_it_comes_back() -> None:
    text = b"--- a/pkg/mod.py\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-two\n-three\n"
    (diff,) = unified_diff.parse(text, "a.diff")
    removes = WantedSet("a", (FileEdit(PATH, diff=diff),))
    (step,) = plan([removes], found(ORIGINAL))
    assert (step.after, step.content, step.original) == (None, None, sha256(ORIGINAL))
    (step,) = plan([], Found(PATH, None, None, Entry(sha256(ORIGINAL), None, ("a",)), ORIGINAL))
    assert (step.before, step.after) == (None, sha256(ORIGINAL))


@pytest.mark.parametrize(
    ("file", "state"),
    [
        (found(ORIGINAL), FileState.ORIGINAL),
        (found(ORIGINAL, recorded=ORIGINAL), FileState.ORIGINAL),
        (found(b"other\n", recorded=ORIGINAL), FileState.UNEXPECTED),
        (found(None), FileState.MISSING),
        (found(FIRST, current=FIRST, sets=("a",)), FileState.PATCHED),
        (found(ORIGINAL, current=FIRST, sets=("a",)), FileState.ORIGINAL),
        (found(b"x\n", current=FIRST, sets=("a",)), FileState.ALTERED),
        (found(None, current=FIRST, sets=("a",)), FileState.MISSING),
        (found(b"v2\n", current=FIRST, sets=("a",), recorded=b"v2\n"), FileState.ORIGINAL),
        (Found(PATH, None, in_transaction=True), FileState.HALF_APPLIED),
    ],
)
def test_the_state_of_a_file(file: Found, state: FileState) -> None:
    assert patch_plan.state(file) is state
