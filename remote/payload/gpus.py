"""The host's NVIDIA GPUs, as nvidia-smi prints them; reading the text is the client's part."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

from .refusal import Refused

GPU_FIELDS = "index,name,uuid,memory.total,memory.used,driver_version,compute_cap"
APP_FIELDS = "gpu_uuid,pid,used_memory"

_PLACES = "/usr/bin:/usr/local/bin:/usr/local/nvidia/bin:/bin"
_SAMPLE_S = 5
#: A driver gives back the memory of a process that is gone within seconds.
_RELEASE_S = 60.0
_LOOK_S = 0.5


def program() -> str | None:
    """nvidia-smi, where the host has it."""
    return shutil.which("nvidia-smi", path=_PLACES)


class Sampler:
    """Utilisation (percent) and memory (MiB) of each GPU, every few seconds.

    One nvidia-smi that goes on, for its start costs more than its samples; in a thread of its own,
    for one that waits for a sick driver must hold up nothing.
    """

    def __init__(self) -> None:
        self.latest: list[list[int]] = []
        self._program: subprocess.Popen[bytes] | None = None
        found = program()
        if found is not None:
            query = "--query-gpu=index,utilization.gpu,memory.used"
            with contextlib.suppress(OSError):
                self._program = subprocess.Popen(
                    [found, query, "--format=csv,noheader,nounits", f"--loop={_SAMPLE_S}"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                threading.Thread(target=self._sample, args=(self._program,), daemon=True).start()

    def stop(self) -> None:
        if self._program is not None:
            self._program.kill()

    def _sample(self, program: subprocess.Popen[bytes]) -> None:
        assert program.stdout is not None
        rows: dict[str, list[int]] = {}
        with program.stdout as lines:
            for line in lines:
                index, *row = line.decode("utf-8", "replace").split(",")
                if len(row) != 2:
                    continue
                rows[index] = [int(word) if word.strip().isdigit() else 0 for word in row]
                self.latest = list(rows.values())
        program.wait()


def ask() -> dict[str, Any]:
    """nvidia-smi's CSV of GPUs and of processes on them, or why there is none."""
    found = program()
    if found is None:
        return {"reason": "no nvidia-smi on this host"}
    answers = {}
    for name, what in (
        ("gpus", f"--query-gpu={GPU_FIELDS}"),
        ("apps", f"--query-compute-apps={APP_FIELDS}"),
    ):
        try:
            done = subprocess.run(
                [found, what, "--format=csv,noheader,nounits"],
                capture_output=True,
                timeout=20,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"reason": f"nvidia-smi failed: {error}"}
        if done.returncode != 0:
            text = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
            return {"reason": f"nvidia-smi failed: {text.splitlines()[0] if text else 'no output'}"}
        answers[name] = done.stdout.decode("utf-8", "replace")
    return answers


def released(pids: Collection[int]) -> Iterator[dict[str, Any]]:
    """Return once none of these processes, which have ended, has GPU memory; tells how many have.

    Raises:
        Refused: ToolError; their memory stays.
    """
    until = time.monotonic() + _RELEASE_S
    while pids:
        rows = [row.split(", ") for row in ask().get("apps", "").splitlines()]
        left = [row for row in rows if len(row) == 3 and row[1].isdigit() and int(row[1]) in pids]
        if not left:
            return
        if time.monotonic() > until:
            raise Refused(
                "ToolError",
                "the server's processes are gone but their GPU memory is not",
                evidence=[f"GPU {gpu}: pid {pid}, {used} MiB" for gpu, pid, used in left],
                hint="nvidia-smi on the host; a driver that hangs needs a reset",
            )
        yield {"gpu_memory_of": len({pid for _, pid, _ in left})}
        time.sleep(_LOOK_S)
