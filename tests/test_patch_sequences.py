"""Any sequence of patching, rolling back, pip, hands and kills ends in a state that is known."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hosts import LocalHost
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from interrupting import Interrupting
from patch_lab import (
    ANSWER,
    BOTH,
    CORE,
    HOOK,
    HOOK_CONTENT,
    HOOK_FILE,
    QUANT,
    VERSIONS,
    PatchLab,
    edited,
    sha256,
)

from remote import patch_work
from remote.errors import ConfigError, ConnectionLost, PatchRefused
from remote.session import Session

SETS = (ANSWER, BOTH, HOOK)


class World:
    """A host, what happens to it, and what must be true of it afterwards."""

    def __init__(self, folder: Path) -> None:
        self.lab = PatchLab(folder)
        self.interrupting = Interrupting(self.lab.venv, folder / "control")
        self.home = folder / "home"
        self.home.mkdir()
        self.host = self._connected()
        #: What was written by hand over a file since pip last brought it.
        self.by_hand: dict[str, bytes] = {}
        self.said = ""

    def _connected(self) -> LocalHost:
        return LocalHost(self.lab.settings, self.home, python=str(self.interrupting.python))

    def session(self) -> Session:
        return self.lab.session(self.host)

    def close(self) -> None:
        self.host.close()

    def apply(self, name: str) -> None:
        session = self.session()
        try:
            patch_work.apply(session, name)
        except PatchRefused as refusal:
            assert refusal.hint or "needs" in refusal.message, refusal
            return
        report = patch_work.verify(session)
        assert report["holds"] and name in report["applied"]
        self.check_patched(report["applied"])

    def rollback_one(self, name: str) -> None:
        session = self.session()
        try:
            patch_work.rollback(session, name)
        except ConfigError as error:
            assert "is not applied" in error.message
            return
        except PatchRefused as refusal:  # what remains does not fit what pip brought
            assert refusal.hint or "needs" in refusal.message, refusal
            return
        assert name not in patch_work.verify(session)["applied"]

    def rollback_all(self) -> None:
        session = self.session()
        standing = self.lab.contents()
        stale = {
            row["path"]
            for row in patch_work.verify(session)["files"]
            if row["state"] in ("reinstalled", "missing")
        }
        rolled = patch_work.rollback(session, None)
        assert rolled["remaining"] == [] and all(file["proven"] for file in rolled["files"])
        self.said = session.display.text  # type: ignore[attr-defined]
        for path in stale:
            if str(Path(path).relative_to(self.lab.site)) in standing:
                assert f"{path} was reinstalled" in self.said
        self.check_original()

    def reinstall(self, version: str | None) -> None:
        self.lab.install(version or self.lab.version)
        self.by_hand = {
            name: content for name, content in self.by_hand.items() if name == HOOK_FILE
        }

    def edit(self, name: str, number: int) -> None:
        if self.lab.path(name).exists():
            content = f"# by hand {number}\n".encode()
            self.lab.path(name).write_bytes(content)
            self.by_hand[name] = content

    def killed(self, name: str | None, step: int) -> None:
        """Apply a set, or roll everything back, with the agent killed on the way."""
        self.host.close()
        self.interrupting.kill_before(step)
        self.host = self._connected()
        session = self.session()
        try:
            if name is None:
                patch_work.rollback(session, None)
            else:
                patch_work.apply(session, name)
        except (ConnectionLost, PatchRefused):
            pass
        self.host.close()
        self.interrupting.countermand()
        self.host = self._connected()
        patch_work.verify(self.session())  # looks, and does not fail

    def check_patched(self, applied: list[str]) -> None:
        pristine = VERSIONS[self.lab.version]
        for name, content in self.lab.contents().items():
            if name == HOOK_FILE:
                assert HOOK in applied and content == HOOK_CONTENT
            else:
                wanted = edited(pristine[name], name, applied)
                assert content in (wanted, self.by_hand.get(name)), name

    def check_original(self) -> None:
        """The installed version's own files; hands' work stands, or is kept."""
        pristine = VERSIONS[self.lab.version]
        now = self.lab.contents()
        assert now.keys() == pristine.keys()
        for name, content in now.items():
            assert content in (pristine[name], self.by_hand.get(name)), name
        for name, content in self.by_hand.items():
            kept = self.lab.state / "originals" / sha256(content)
            assert now.get(name) == content or kept.read_bytes() == content
        report = patch_work.verify(self.session())
        assert report == {"applied": [], "interrupted": False, "files": [], "holds": True}


ACTIONS = st.one_of(
    st.tuples(st.just("apply"), st.sampled_from(SETS)),
    st.tuples(st.just("apply"), st.sampled_from(SETS)),
    st.tuples(st.just("rollback_one"), st.sampled_from(SETS)),
    st.tuples(st.just("rollback_all")),
    st.tuples(st.just("reinstall"), st.sampled_from([None, "0.6.3", "0.6.4", "0.6.7"])),
    st.tuples(st.just("edit"), st.sampled_from([CORE, QUANT, HOOK_FILE]), st.integers(0, 9)),
    st.tuples(st.just("killed"), st.sampled_from([None, *SETS]), st.integers(1, 50)),
)

#: Killed when the first file was written and the second was not; the originals are saved by then.
HALF_WAY = [("apply", BOTH), ("rollback_all",), ("killed", BOTH, 15)]


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTIONS, min_size=1, max_size=8))
@example([*HALF_WAY, ("edit", CORE, 1)])
@example([*HALF_WAY, ("reinstall", "0.6.4")])
@example([*HALF_WAY, ("reinstall", "0.6.7")])
@example([*HALF_WAY, ("reinstall", "0.6.4"), ("edit", CORE, 1)])
@example([("apply", BOTH), ("reinstall", "0.6.7")])
@example([("apply", BOTH), ("reinstall", "0.6.4"), ("edit", CORE, 1)])
@example([("apply", BOTH), ("apply", HOOK), ("edit", CORE, 1), ("rollback_one", HOOK)])
def test_whatever_happened_a_rollback_returns_what_is_installed(
    actions: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "world")
        try:
            for what, *how in actions:
                getattr(world, what)(*how)
            world.rollback_all()
        finally:
            world.close()
