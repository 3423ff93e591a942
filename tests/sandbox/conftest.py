"""A sandbox folder with keys and an SSH server, without the packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.sandbox.control import start_server
from remote.sandbox.keys import make_keys
from remote.sandbox.layout import Layout
from remote.sandbox.record import ServerRecord


def bare_sandbox(folder: Path) -> Layout:
    """What the set-up's first step leaves."""
    layout = Layout(folder)
    make_keys(layout)
    layout.home.mkdir()
    return layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return bare_sandbox(tmp_path / "sandbox")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """A bare sandbox whose SSH server listens; started with something to leak."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIRTUAL_ENV", "/leaked")
        patch.setenv("INVOKE_HOST", "leaked")
        patch.setenv("PYTHONHASHSEED", "7")
        layout = bare_sandbox(tmp_path_factory.mktemp("served") / "sandbox")
        start_server(layout)
    yield layout
    record = ServerRecord.read(layout.server_record)
    assert record is not None
    record.process.stop(5.0)
