"""pip as a child process: its progress line by line, its resolver's report as values."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.errors import ToolError

#: Settings that would send packages elsewhere than into the venv, or change what pip prints.
#: Everything else of the user's (index, proxy, certificates, find-links) is honoured.
_NOT_PASSED = frozenset(
    {
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_QUIET",
        "PIP_VERBOSE",
        "PIP_PROGRESS_BAR",
        "PIP_DRY_RUN",
        "PIP_NO_DEPS",
        "PIP_REPORT",
        "PIP_REQUIRE_HASHES",
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
    }
)


def pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment as pip in the sandbox's venv may see it."""
    kept = {name: value for name, value in environ.items() if name not in _NOT_PASSED}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "NO_COLOR": "1"}


class ProgressReader:
    """pip's output → one short line saying what it is doing."""

    def __init__(self) -> None:
        self._file = ""
        self._percent = -1

    def read(self, line: str) -> str | None:
        """What a line of pip's says, or None where it says nothing new.

        ``Progress 5 of 10`` lines (bytes; ``--progress-bar raw``) follow the name of their file.
        """
        line = line.strip()
        if line.startswith("Collecting "):
            return line.split(" (", 1)[0].removeprefix("Collecting ")
        if line.startswith(("Downloading ", "Using cached ", "Processing ")):
            self._file = line.split(" (", 1)[0].split()[-1].rpartition("/")[2]
            self._percent = -1
            return line if line.startswith("Downloading ") else self._file
        if progress := re.fullmatch(r"Progress (\d+) of (\d+)", line):
            done, total = int(progress[1]), int(progress[2])
            percent = 100 * done // total if total else 100
            if percent == self._percent or total < 10_000_000:
                return None
            self._percent = percent
            return f"{self._file}: {done // 1_000_000} of {total // 1_000_000} MB"
        if line.startswith("Installing collected packages: "):
            count = line.count(",") + 1
            return f"unpacking {count} package{'s' if count > 1 else ''}"
        return None


@dataclass(frozen=True)
class Pip:
    """pip of one interpreter.

    Args:
        python: the interpreter whose pip it is.
        log: the file that gets everything printed.
        inherited: file descriptors the child keeps. The set-up's lock is one: should the set-up
            be killed, pip goes on alone and holds the lock until it is done.
    """

    python: Path
    log: Path
    inherited: tuple[int, ...] = ()

    def install(
        self, arguments: Sequence[str], detail: Callable[[str], None], *, raw_progress: bool = True
    ) -> None:
        """``pip install``, reported as it goes.

        Raises:
            ToolError: pip failed; its error lines are the evidence.
        """
        command = [str(self.python), "-m", "pip", "install", "--no-compile"]
        command += ["--progress-bar", "raw" if raw_progress else "off", *arguments]
        reader = ProgressReader()
        last: deque[str] = deque(maxlen=200)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=pip_environment(os.environ),
                pass_fds=self.inherited,
                text=True,
                errors="replace",
            )
            with process:
                assert process.stdout is not None
                for line in process.stdout:
                    if not line.startswith("Progress "):
                        log.write(line)
                        log.flush()
                        last.append(line.rstrip())
                    if said := reader.read(line):
                        detail(said)
        if process.returncode != 0:
            raise self._failed(process.returncode, last)

    def report(self, arguments: Sequence[str]) -> dict[str, Any]:
        """What ``pip install`` of these would take: its installation report, nothing installed.

        Source: pip's "Installation Report" specification, version 1.

        Raises:
            ToolError: pip could not resolve them.
        """
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "report.json"
            command = [str(self.python), "-m", "pip", "install", "--dry-run", "--ignore-installed"]
            command += ["--quiet", "--report", str(path), *arguments]
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=pip_environment(os.environ),
                pass_fds=self.inherited,
                text=True,
                errors="replace",
                check=False,
            )
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
            if done.returncode != 0:
                raise self._failed(done.returncode, done.stderr.splitlines())
            read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return read

    def _failed(self, status: int, lines: Sequence[str] | deque[str]) -> ToolError:
        errors = [line for line in lines if line.lstrip().startswith("ERROR")]
        return ToolError(
            f"pip ended with status {status}",
            evidence=(errors or list(lines))[-5:],
            hint=f"the whole output is in {self.log}; run the same task again to go on from here",
        )
