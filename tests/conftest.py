"""What the tests share: a host without SSH, its venv, and a home that is not this machine's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hosts import LocalHost, Venv, end_runs, host_settings

from remote.config import HostSettings

# How long an example takes says nothing on a machine that does other work too.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, here and for whatever the test starts."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def fake_venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path / "ml-env")


@pytest.fixture
def lab(tmp_path: Path, fake_venv: Venv) -> Iterator[HostSettings]:
    """The settings of a host on this machine; what is started there ends with the test."""
    settings = host_settings(tmp_path, fake_venv.folder)
    yield settings
    end_runs(settings.state)


@pytest.fixture
def local_host(lab: HostSettings, home: Path) -> Iterator[LocalHost]:
    host = LocalHost(lab, home)
    yield host
    host.close()
