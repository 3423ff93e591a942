"""A checkout's commit, read without git, is what git says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from remote.payload import checkout


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    root = tmp_path / "sglang"
    (root / "python" / "sglang").mkdir(parents=True)
    git(root, "init", "-q")
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    return root


def test_the_commit_of_a_branch(sources: Path) -> None:
    assert checkout.commit(str(sources / "python")) == git(sources, "rev-parse", "HEAD")


def test_packed_refs_a_detached_head_and_a_worktree(sources: Path, tmp_path: Path) -> None:
    commit = git(sources, "rev-parse", "HEAD")
    git(sources, "worktree", "add", "-q", str(tmp_path / "other"))
    assert checkout.commit(str(tmp_path / "other")) == commit
    git(sources, "pack-refs", "--all")
    assert checkout.commit(str(sources)) == commit
    assert checkout.commit(str(tmp_path / "other")) == commit
    git(sources, "checkout", "-q", "--detach")
    assert checkout.commit(str(sources)) == commit


def test_no_checkout_has_none(tmp_path: Path) -> None:
    assert checkout.commit(str(tmp_path)) is None
    (tmp_path / ".git").write_text("nothing that git wrote")
    assert checkout.commit(str(tmp_path)) is None
