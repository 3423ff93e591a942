"""Long answers that have not changed do not travel again, and are never made up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import LocalHost, Venv

from remote import patching, venv
from remote.config import HostSettings
from remote.remembered import Remembered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "lab"


@pytest.fixture
def host(lab: HostSettings, home: Path, folder: Path) -> Iterator[LocalHost]:
    made = LocalHost(lab, home, remembered=Remembered(folder))
    yield made
    made.close()


def received(host: LocalHost, lab: HostSettings) -> int:
    """Bytes that it takes to be told the installed parser's flags, which are as they are."""
    assert host.pipes is not None
    before = host.pipes.received
    assert "tp-size" in venv.installed_parser(host, lab, lambda text: None).flags
    return host.pipes.received - before


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_answer_travels_once(host: LocalHost, lab: HostSettings, folder: Path) -> None:
    host.call("runs.ids", state=lab.state)
    first, second, third = (received(host, lab) for _ in range(3))
    assert first > 3000
    assert third < 200, (first, second, third)
    assert {path.stat().st_mode & 0o777 for path in kept(folder)} == {0o600}


def test_another_venv_gives_another_answer(
    host: LocalHost, lab: HostSettings, fake_venv: Venv
) -> None:
    before = venv.installed_parser(host, lab, lambda text: None)
    flags = fake_venv.folder / "flags.json"
    flags.write_text(flags.read_text().replace('"tp-size"', '"tp-sighs"'))
    fake_venv.install("sglang", "0.5.10", {})
    after = venv.installed_parser(host, lab, lambda text: None)
    assert "tp-size" in before.flags and "tp-sighs" in after.flags


@pytest.mark.parametrize("spoil", ["changed", "cut", "gone", "unreadable"])
def test_a_copy_that_is_not_sound_is_sent_again(
    spoil: str, host: LocalHost, lab: HostSettings, folder: Path
) -> None:
    host.call("runs.ids", state=lab.state)
    received(host, lab)
    received(host, lab)
    for path in kept(folder):
        content = path.read_bytes()
        if spoil == "changed":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        elif spoil == "cut":
            path.write_bytes(content[:100])
        elif spoil == "gone":
            path.unlink()
        else:
            path.unlink()
            path.mkdir()
    assert received(host, lab) > 3000


def test_a_cache_that_cannot_be_written_changes_nothing(
    lab: HostSettings, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    host = LocalHost(lab, home, remembered=Remembered(tmp_path / "file" / "lab"))
    for _ in range(2):
        assert received_any(host, lab) > 3000
    host.close()


def received_any(host: LocalHost, lab: HostSettings) -> int:
    host.call("runs.ids", state=lab.state)
    return received(host, lab)


def test_patched_files_are_told_by_what_they_were(
    host: LocalHost, lab: HostSettings, fake_venv: Venv, folder: Path
) -> None:
    content = os.urandom(40_000)
    fake_venv.install("flashinfer-python", "0.6.3", {"flashinfer/core.py": content})
    path = str(fake_venv.site / "flashinfer/core.py")
    assert host.pipes is None
    for most in (60_000, 1000):
        host.call("runs.ids", state=lab.state)
        assert host.pipes is not None
        before = host.pipes.received  # type: ignore[unreachable]
        assert patching.view(host, lab, paths=[path]).found[path].base == content
        assert host.pipes.received - before < most
    # A few answers are kept of each request, no more.
    for number in range(9):
        (fake_venv.site / "flashinfer/core.py").write_bytes(content + b"%d" % number)
        patching.view(host, lab, paths=[path])
    assert len(kept(folder)) == 4
