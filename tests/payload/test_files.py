"""Files written in one step, with their mode and owner; links and strangers refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from remote.payload import files
from remote.payload.refusal import Refused


def test_content_mode_and_owner_are_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    files.write(str(path), b"x\n", 0o751, (os.geteuid(), os.getegid()))
    found = files.read(str(path))
    assert found == files.Found(b"x\n", 0o751, os.geteuid(), os.getegid())


def test_the_umask_does_not_narrow_the_mode(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.write(str(tmp_path / "module.py"), b"", 0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "module.py").stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "module.py"
    path.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["module.py"]


def test_a_hard_link_elsewhere_keeps_its_bytes(tmp_path: Path) -> None:
    """uv links installed files to its cache: a patch must not reach it."""
    cached, installed = tmp_path / "cached.py", tmp_path / "installed.py"
    cached.write_bytes(b"wheel")
    installed.hardlink_to(cached)
    files.write(str(installed), b"patched")
    assert cached.read_bytes() == b"wheel"


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", ".", "pipe"):
        with pytest.raises(Refused):
            files.read(str(tmp_path / name))
    assert files.read(str(tmp_path / "missing")) is None
    assert files.read(str(tmp_path / "target" / "below")) is None


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    made = files.private_dir(str(tmp_path / "state"))
    assert stat.S_IMODE(Path(made).stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_or_steer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Refused, match="others may write") as refusal:
        files.private_dir(str(tmp_path / "open"))
    assert "chmod go-w" in str(refusal.value.hint)
    (tmp_path / "steered").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(Refused, match="not a folder"):
        files.private_dir(str(tmp_path / "steered"))


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    files.remove(str(tmp_path / "missing"))
    (tmp_path / "there").touch()
    files.remove(str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()
