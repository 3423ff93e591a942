"""The tool as a user runs it: ``inv`` in a project folder of the test's own, each call timed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.settings import HERE, PROJECT


class OutOfTime(Exception):
    """The time of this call is used up; the same command goes on."""


@dataclass
class Task:
    """A task that runs, or has ended.

    Attributes:
        began: seconds since the epoch.
        lines: its prose, each line with the moment it came, in seconds since the epoch.
    """

    words: tuple[str, ...]
    process: subprocess.Popen[str]
    began: float
    lines: list[tuple[float, str]] = field(default_factory=list)
    stdout: list[str] = field(default_factory=list)
    ended: float = 0.0

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=self._read_prose, daemon=True),
            threading.Thread(target=self._read_data, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_prose(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append((time.time(), line.rstrip("\n")))
            print(f"    {line.rstrip()}"[:300], flush=True)

    def _read_data(self) -> None:
        assert self.process.stdout is not None
        self.stdout.extend(self.process.stdout)

    @property
    def status(self) -> int | None:
        return self.process.poll()

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def prose(self) -> str:
        return "\n".join(line for _, line in self.lines)

    @property
    def data(self) -> dict[str, Any]:
        """The document on standard output; empty where there is none."""
        try:
            found = json.loads("".join(self.stdout))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def diagnosis(self) -> dict[str, Any]:
        """What a failure was found to be."""
        return dict(self.data.get("error", self.data).get("diagnosis") or {})

    def said(self, words: str) -> float | None:
        """When the first line of prose with these words came."""
        return next((at for at, line in list(self.lines) if words in line), None)

    def until_said(self, words: str, deadline: float) -> bool:
        """Wait until it says so; False where it ended without."""
        while self.said(words) is None:
            if self.status is not None:
                self._end()
                return self.said(words) is not None
            if time.time() > deadline:
                return False
            time.sleep(0.05)
        return True

    def wait(self, deadline: float) -> Task:
        """Until it has ended.

        Raises:
            OutOfTime: it has not by then; it was interrupted, as with Ctrl-C.
        """
        try:
            self.process.wait(max(deadline - time.time(), 1.0))
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self._end()
            raise OutOfTime(f"inv {' '.join(self.words)}") from None
        self._end()
        return self

    def _end(self) -> None:
        self.process.wait()
        for reader in self._readers:
            reader.join(10)
        self.ended = self.ended or time.time()


@dataclass
class Tool:
    """A project folder with settings of its own.

    Attributes:
        python: an interpreter that has the tool's packages.
        deadline: when this call's time is over, in seconds since the epoch.
    """

    folder: Path
    python: str
    deadline: float
    host: str = "gpu"

    def configure(self, hosts: Mapping[str, Any]) -> None:
        """Write invoke.yaml (JSON is YAML) and link the tasks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "home").mkdir(exist_ok=True)
        settings = {
            "hosts": dict(hosts),
            "host": self.host,
            "runs": str(self.runs),
            "templates": str(HERE / "templates"),
        }
        (self.folder / "invoke.yaml").write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
        tasks = self.folder / "tasks.py"
        if not tasks.exists():
            tasks.symlink_to(PROJECT / "tasks.py")

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def start(self, *words: str, stdin: str | None = None) -> Task:
        """Start a task; ``inv run`` apart, with ``--json``."""
        words = words if words[0] == "run" else (*words, "--json")
        print(f"  inv {' '.join(words)}"[:300], flush=True)
        kept = ("PATH", "LANG", "SSH_AUTH_SOCK")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        # A user's own keys and known hosts are found through HOME.
        home = os.environ.get("HOME", str(self.folder / "home"))
        began = time.time()
        process = subprocess.Popen(
            [self.python, "-m", "invoke", *words],
            cwd=self.folder,
            env={**env, "HOME": home, "PYTHONPATH": str(PROJECT), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        if stdin is not None and process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
        return Task(words, process, began)

    def inv(self, *words: str, stdin: str | None = None, limit_s: float = 1e9) -> Task:
        """Run a task to its end.

        Raises:
            OutOfTime: the call's time is over.
        """
        task = self.start(*words, stdin=stdin)
        return task.wait(min(self.deadline, time.time() + limit_s))

    def python_there(
        self, script: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> str:
        """Run a script with the host's own interpreter; what it printed.

        Raises:
            RuntimeError: it failed.
        """
        given = " ".join(f"{name}='{value}'" for name, value in (env or {}).items())
        words = " ".join(f"'{word}'" for word in arguments)
        done = self.inv("run", f"{given} python - {words}".strip(), stdin=script)
        if done.status != 0:
            raise RuntimeError(f"the script failed on the host: {done.prose[-500:]}")
        return "".join(done.stdout)
