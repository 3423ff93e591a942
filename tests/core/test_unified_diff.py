"""Diffs read and applied exactly: what a hunk names must stand in the file, to the byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.core import unified_diff
from remote.errors import ConfigError, PatchRefused

OLD = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"
NEW = OLD.replace(b"two\n", b"two\n2.5\n").replace(b"seven\n", b"SEVEN\n")


def applied(content: bytes, text: bytes) -> bytes:
    (diff,) = unified_diff.parse(text, "a.diff")
    return unified_diff.apply(content, diff)


def hunk(body: bytes, head: bytes = b"@@ -1,1 +1,1 @@") -> bytes:
    return b"--- a/f.py\n+++ b/f.py\n" + head + b"\n" + body


TEXTS = st.lists(
    st.sampled_from([b"a", b"b", b"", b"c\r", b"\xff", b"d\x0ce\rf", b"-- x", b"++ y"])
)


@given(TEXTS, TEXTS, st.booleans(), st.booleans(), st.integers(0, 3))
def test_what_gnu_diff_made_is_applied_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory,
    old: list[bytes],
    new: list[bytes],
    old_open: bool,
    new_open: bool,
    context: int,
) -> None:
    folder = tmp_path_factory.mktemp("diff")
    before = b"\n".join(old) + (b"" if old_open else b"\n")
    after = b"\n".join(new) + (b"" if new_open else b"\n")
    (folder / "old").write_bytes(before)
    (folder / "new").write_bytes(after)
    made = subprocess.run(
        ["diff", "--text", f"-U{context}", "old", "new"], cwd=folder, capture_output=True
    ).stdout
    if before == after:
        assert made == b""
        return
    assert applied(before, made) == after


def test_git_diffs_of_several_files_are_read_through_their_prose() -> None:
    text = (
        b"From 0123 Mon Sep 17 00:00:00 2001\nSubject: two files\n\n---\n a.py | 2 +-\n\n"
        b"diff --git a/a.py b/a.py\nindex 1..2 100644\n--- a/a.py\n+++ b/a.py\n"
        b"@@ -1 +1 @@ def f():\n-a\n+A\n"
        b"diff --git a/b.py b/b.py\nnew file mode 100644\n--- /dev/null\n+++ b/b.py\n"
        b"@@ -0,0 +1,2 @@\n+b\n+bb\n"
        b"diff --git a/c.py b/c.py\ndeleted file mode 100644\n--- a/c.py\n+++ /dev/null\n"
        b"@@ -1 +0,0 @@\n-c\n"
        b"-- \n2.39.2\n"
    )
    files = unified_diff.parse(text, "series.patch")
    assert [(f.path, f.creates, f.removes) for f in files] == [
        ("a.py", False, False),
        ("b.py", True, False),
        ("c.py", False, True),
    ]
    assert unified_diff.apply(b"a\n", files[0]) == b"A\n"
    assert unified_diff.apply(b"", files[1]) == b"b\nbb\n"
    assert unified_diff.apply(b"c\n", files[2]) == b""


def test_a_hunk_stands_elsewhere_if_its_lines_occur_once() -> None:
    text = hunk(b" x\n-y\n+Y\n", b"@@ -1,2 +1,2 @@")
    assert applied(b"0\n1\n2\nx\ny\n", text) == b"0\n1\n2\nx\nY\n"


def test_lines_that_occur_twice_elsewhere_are_refused() -> None:
    text = hunk(b" x\n-y\n+Y\n", b"@@ -2,2 +2,2 @@")
    with pytest.raises(PatchRefused, match="occur 2 times"):
        applied(b"x\ny\n0\nx\ny\n", text)
    assert applied(b"x\nx\ny\nx\ny\n", text) == b"x\nx\nY\nx\ny\n"  # where it says


@pytest.mark.parametrize(
    "content", [b"x \ny\n", b"X\ny\n", b"x\r\ny\r\n", b"x\n\ny\n", b"x\n", b"", b"x\ny"]
)
def test_no_line_may_differ(content: bytes) -> None:
    with pytest.raises(PatchRefused, match="not there") as refusal:
        applied(content, hunk(b" x\n-y\n+Y\n", b"@@ -1,2 +1,2 @@"))
    assert "wanted from line 1:" in refusal.value.evidence
    assert refusal.value.exit_code == 13


def test_a_second_hunk_is_not_placed_before_the_first() -> None:
    text = hunk(b"-b\n+B\n@@ -3 +3 @@\n-a\n+A\n", b"@@ -2 +2 @@")
    with pytest.raises(PatchRefused, match="hunk 2"):
        applied(b"a\nb\nc\n", text)


def test_crlf_files_take_crlf_diffs() -> None:
    text = b"--- a/f\r\n+++ b/f\r\n@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n+B\r\n"
    assert applied(b"a\r\nb\r\n", text) == b"a\r\nB\r\n"


def test_an_insertion_without_context_stands_after_the_line_it_names() -> None:
    text = hunk(b"+new\n", b"@@ -2,0 +3 @@")
    assert applied(b"1\n2\n3\n", text) == b"1\n2\nnew\n3\n"
    with pytest.raises(PatchRefused):
        applied(b"1\n", text)  # there is no second line
    with pytest.raises(PatchRefused):
        applied(b"1\n2", text)  # it would grow onto the end of the last


def test_a_line_without_its_newline_can_only_be_the_last() -> None:
    text = hunk(b"-a\n+A\n\\ No newline at end of file\n")
    assert applied(b"a\n", text) == b"A"
    with pytest.raises(PatchRefused):
        applied(b"a\nb\n", text)


def test_the_note_on_a_missing_newline_is_read_in_any_language() -> None:
    text = hunk(b"-a\n\\ Kein Zeilenumbruch am Dateiende.\n+A\n")
    assert applied(b"a", text) == b"A\n"


def test_a_file_that_a_patch_makes_must_not_be_there() -> None:
    text = b"--- /dev/null\n+++ b/f.py\n@@ -0,0 +1 @@\n+new\n"
    with pytest.raises(PatchRefused, match="there already"):
        applied(b"somebody's\n", text)


def test_a_file_that_a_patch_removes_must_hold_nothing_else() -> None:
    text = b"--- a/f.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
    assert applied(b"old\n", text) == b""
    with pytest.raises(PatchRefused, match="more than it names"):
        applied(b"old\nand more\n", text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"just prose\n",
        b"--- a/f.py\n+++ b/f.py\n",
        hunk(b" a\n", b"@@ -1,2 +1,2 @@"),
        hunk(b" a\n*b\n", b"@@ -1,2 +1,2 @@"),
        hunk(b"-a\n+A\n+more\n"),
        hunk(b"-a\n+A\n b\n"),
    ],
    ids=["empty", "prose", "no hunk", "short", "odd line", "long", "long by context"],
)
def test_a_malformed_diff_is_refused_with_its_place(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"a\.diff"):
        unified_diff.parse(text, "a.diff")


def test_an_editor_may_have_stripped_the_space_of_an_empty_line() -> None:
    assert applied(b"a\n\nb\n", hunk(b" a\n\n-b\n+B\n", b"@@ -1,3 +1,3 @@")) == b"a\n\nB\n"


@given(TEXTS, TEXTS, st.booleans())
def test_a_diff_for_reading_says_the_change(
    old: list[bytes], new: list[bytes], open_: bool
) -> None:
    def clean(lines: list[bytes]) -> bytes:
        return b"\n".join(line.replace(b"\xff", b"") for line in lines) + (b"" if open_ else b"\n")

    before, after = clean(old), clean(new)
    text = unified_diff.between(before, after, "f.py")
    if before == after:
        assert text == ""
    else:
        assert applied(before, text.encode()) == after


def test_shipped_diffs_are_well_formed() -> None:
    found = sorted((Path(__file__).parents[2] / "templates" / "patches").rglob("*.diff"))
    assert found
    for path in found:
        assert unified_diff.parse(path.read_bytes(), str(path))
