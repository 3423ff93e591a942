"""Which files of an installed package were edited, and where their originals come from."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from remote.payload import authoring, patches
from remote.payload.refusal import Refused

MODULE, DEEP = "pkg/mod.py", "pkg/deep/er.py"


class Installed:
    """A distribution ``pkg`` 1.0 beside another one, and a pip whose index is a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = folder / "site"
        self.state = str(folder / "state")
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.contents = {MODULE: b"m = 1\n", DEEP: b"d = 1\n", "pkg/__init__.py": b""}
        self.info = self.put("pkg", self.contents)
        self.put("other", {"pkg/others.py": b"o = 1\n"})
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(self.wheels))

    def put(self, name: str, contents: dict[str, bytes]) -> Path:
        info = self.site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        for path, content in contents.items():
            (self.site / path).parent.mkdir(parents=True, exist_ok=True)
            (self.site / path).write_bytes(content)
        compiled = "pkg/__pycache__/mod.cpython-311.pyc,,\n../../bin/pkg,sha256=AAAA,3\n"
        (info / "RECORD").write_text(rows(contents) + compiled)
        return info

    def wheel(self, prefix: str = "", folder: Path | None = None) -> Path:
        path = (folder or self.wheels) / "pkg-1.0-py3-none-any.whl"
        info = "pkg-1.0.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in self.contents.items():
                archive.writestr(prefix + name, content)
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", rows(self.contents))
        return path

    def asked(self, editable: str | None) -> tuple[dict[str, Any], bytes]:
        python, site = sys.executable, str(self.site)
        return authoring.read(self.state, python, site, "pkg", "1.0", str(self.info), editable)

    def read(self, editable: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """By name the bytes ``(original, edited)``; by name why a file is left out."""
        told, data = self.asked(editable)
        position = 0
        found = {}
        for row in told["files"]:
            sides = []
            for side in ("original", "edited"):
                size = row[side]
                sides.append(None if size is None else data[position : position + size])
                position += size or 0
            found[row["name"]] = tuple(sides)
        assert position == len(data)
        return found, {Path(row["path"]).name: row["reason"] for row in told["left_out"]}


def rows(contents: dict[str, bytes]) -> str:
    lines = []
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return "".join(lines)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    return Installed(tmp_path, monkeypatch)


def test_a_package_as_it_was_installed_has_no_edits(installed: Installed) -> None:
    assert installed.read() == ({}, {})


@pytest.mark.parametrize("prefix", ["", "pkg-1.0.data/purelib/", "pkg-1.0.data/platlib/"])
def test_originals_come_from_the_wheel_wherever_in_it_they_lie(
    installed: Installed, prefix: str
) -> None:
    installed.wheel(prefix)
    (installed.site / MODULE).write_bytes(b"m = 2\n")
    (installed.site / DEEP).write_bytes(b"")
    found, left_out = installed.read()
    assert found == {MODULE: (b"m = 1\n", b"m = 2\n"), DEEP: (b"d = 1\n", b"")}
    assert left_out == {}


def test_a_wheel_that_came_from_an_address_comes_from_there_again(
    installed: Installed, tmp_path: Path
) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    note = {"url": installed.wheel(folder=apart).as_uri(), "archive_info": {}}
    (installed.info / "direct_url.json").write_text(json.dumps(note))
    (installed.site / MODULE).write_bytes(b"m = 2\n")
    assert installed.read()[0] == {MODULE: (b"m = 1\n", b"m = 2\n")}


def test_what_pip_says_is_quoted_where_it_has_no_wheel(installed: Installed) -> None:
    (installed.site / MODULE).write_bytes(b"m = 2\n")
    with pytest.raises(Refused, match="nor to be had from pip") as refusal:
        installed.read()
    assert refusal.value.kind == "PatchRefused"
    assert any("No matching distribution found for pkg==1.0" in x for x in refusal.value.evidence)


def test_only_files_beside_the_packages_own_are_new(installed: Installed) -> None:
    for name in ("new.py", "deep/new.py", ".hidden", "mod.py~", "mod.py.rej", "__pycache__/x.pyc"):
        path = installed.site / "pkg" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"n = 1\n")
    (installed.site / "elsewhere.py").write_bytes(b"e = 1\n")
    (installed.site / "pkg" / "linked.py").symlink_to(installed.site / MODULE)
    found, left_out = installed.read()
    assert found == {"pkg/new.py": (None, b"n = 1\n"), "pkg/deep/new.py": (None, b"n = 1\n")}
    assert left_out == {}


def test_what_we_left_is_no_edit_and_what_was_edited_since_is_stacked(
    installed: Installed,
) -> None:
    steps = []
    for name, after in ((MODULE, b"m = 2\n"), (DEEP, b"d = 2\n"), ("pkg/ours.py", b"u = 1\n")):
        path = installed.site / name
        before = path.read_bytes() if path.exists() else None
        digest = None if before is None else hashlib.sha256(before).hexdigest()
        steps.append(
            {
                "path": str(path),
                "before": digest,
                "after": hashlib.sha256(after).hexdigest(),
                "original": digest,
                "bytes": len(after),
                "sets": ["a-set"],
            }
        )
    patches.commit(installed.state, steps, ["a-set"], b"m = 2\nd = 2\nu = 1\n")
    assert installed.read() == ({}, {})
    (installed.site / DEEP).write_bytes(b"d = 3\n")
    told, data = authoring.read(
        installed.state,
        sys.executable,
        str(installed.site),
        "pkg",
        "1.0",
        str(installed.info),
        None,
    )
    (row,) = told["files"]
    assert (row["name"], row["stacked"], row["original"], data) == (DEEP, True, None, b"d = 3\n")


def test_files_too_large_to_be_edited_by_hand_are_passed_over(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed.site / MODULE).write_bytes(b"m = 2\n")
    monkeypatch.setattr(authoring, "_LARGEST_BYTES", 5)
    assert installed.read() == ({}, {})


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=tester", "-c", "user.email=tester@localhost")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "python" / "pkg").mkdir(parents=True)
    (root / "python" / "pkg" / "mod.py").write_bytes(b"m = 1\n")
    (root / "python" / "pkg" / "old é.py").write_bytes(b"o = 1\n")
    (root / "python" / "pkg" / "dos.py").write_bytes(b"x = 1\r\ny = 1\r\n")
    (root / "README").write_bytes(b"readme\n")
    (root / ".gitattributes").write_bytes(b"dos.py text eol=crlf\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "a commit")
    return root


def test_a_checkout_is_compared_with_its_last_commit(installed: Installed, checkout: Path) -> None:
    package = checkout / "python" / "pkg"
    (package / "mod.py").write_bytes(b"m = 2\n")
    git(checkout, "add", "-u")  # staged counts as well
    (package / "old é.py").unlink()
    (package / "dos.py").write_bytes(b"x = 2\r\ny = 1\r\n")
    (package / "stray.py").write_bytes(b"s = 1\n")
    found, left_out = installed.read(f"{checkout}/python")
    assert found == {
        "python/pkg/mod.py": (b"m = 1\n", b"m = 2\n"),
        "python/pkg/old é.py": (b"o = 1\n", None),
        # As it stood in the working tree, not as git keeps it.
        "python/pkg/dos.py": (b"x = 1\r\ny = 1\r\n", b"x = 2\r\ny = 1\r\n"),
    }
    assert left_out == {"stray.py": "not tracked; git add -N takes it in"}


def test_a_source_deep_in_its_checkout_has_its_own_paths(
    installed: Installed, checkout: Path
) -> None:
    (checkout / "python" / "pkg" / "mod.py").write_bytes(b"m = 2\n")
    (checkout / "README").write_bytes(b"changed\n")
    found, left_out = installed.read(f"{checkout}/python/pkg")
    assert found == {"mod.py": (b"m = 1\n", b"m = 2\n")}
    assert left_out == {"README": f"outside {checkout}/python/pkg"}
