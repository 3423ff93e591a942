"""This tool: `inv deploy`, with everything that it does on."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml
from hosts import new_run
from rig import Client

from benchmarks.job import DISTRIBUTION
from benchmarks.peers import FIRST, UNCACHED, UNCHANGED
from benchmarks.rig import Target


class Ours:
    """A project folder with a profile that brings the patches, and a host entry."""

    name, command = "ours", "`inv deploy`"
    rows: tuple[str, ...] = (UNCACHED, FIRST, UNCHANGED)
    fast_dial = False

    def __init__(self, target: Target, cache: Path) -> None:
        self.target = target
        folder = target.folder / self.name
        templates = folder / "templates"
        home = templates / "patches" / "benchmark" / "all"
        home.mkdir(parents=True)
        for diff in target.files.diffs:
            shutil.copy(diff, home)
        manifest = {
            "summary": "the benchmark's patches",
            "distribution": DISTRIBUTION,
            "versions": ">=0.6",
            "delivery": "edit",
            "edits": [diff.name for diff in target.files.diffs],
        }
        (home / "manifest.yaml").write_text(yaml.safe_dump(manifest))
        (templates / "profiles").mkdir()
        profile = {"description": "the benchmark's", "patches": ["benchmark/all"]}
        (templates / "profiles" / "benchmark.yaml").write_text(yaml.safe_dump(profile))
        entry = {
            "address": f"{target.user}@127.0.0.1:{target.link.port}",
            "venv": str(target.venv.folder),
            "model": "org/tiny",
            "port": target.server_port,
            "state": str(target.state),
            "identity_file": str(target.identity),
            "known_hosts": str(target.known_hosts),
            "ssh_config": "none",
        }
        settings = {"templates": str(templates), "ssh": {"fast_dial": self.fast_dial}}
        self._client = Client(folder, {"gpu": entry}, settings)
        self._before: list[int] = []

    def prepare(self, row: str) -> None:
        if row != UNCHANGED:
            if row == UNCACHED or not self.target.state.exists():
                self.target.end_servers()
                self.target.original_files()
                shutil.rmtree(self.target.state, ignore_errors=True)
                shutil.rmtree(self._client.runs, ignore_errors=True)
            if row == FIRST:
                self.target.end_servers()
                self.target.slow_server()
                if not self.target.state.exists():
                    self._inv("deploy", "benchmark")
                self._inv("stop")
                self._inv("rollback-patch")
            self.target.old_run(new_run())
        self._before = self.target.servers()

    def do(self) -> None:
        self._inv("deploy", "benchmark")

    def right(self, row: str) -> bool:
        now = self.target.servers()
        return (
            self.target.files.holds(self.target.venv.site)
            and self.target.serves()
            and len(now) == 1
            and (now == self._before) == (row == UNCHANGED)
        )

    def close(self) -> None:
        pass

    def _inv(self, *words: str) -> None:
        done = self._client.inv(*words)
        if done.status:
            raise RuntimeError(f"inv {' '.join(words)}: {done.status}\n{done.output}")


class OursFastDial(Ours):
    """With `ssh.fast_dial`."""

    name, command = "ours-fast-dial", "`inv deploy`, fast dial"
    fast_dial = True
