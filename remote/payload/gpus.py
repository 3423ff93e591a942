"""The host's NVIDIA GPUs, as nvidia-smi prints them; reading the text is the client's part."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Any

GPU_FIELDS = "index,name,uuid,memory.total,memory.used,driver_version,compute_cap"
APP_FIELDS = "gpu_uuid,pid,used_memory"

_PLACES = "/usr/bin:/usr/local/bin:/usr/local/nvidia/bin:/bin"
_SAMPLE_S = 5.0


def program() -> str | None:
    """nvidia-smi, where the host has it."""
    return shutil.which("nvidia-smi", path=_PLACES)


class Sampler:
    """Utilisation (percent) and memory (MiB) of each GPU, asked for every few seconds.

    In a thread of its own, for an nvidia-smi that waits for a sick driver must hold up nothing.
    """

    def __init__(self) -> None:
        self.latest: list[list[int]] = []
        self._stopped = threading.Event()
        found = program()
        if found is not None:
            threading.Thread(target=self._sample, args=(found,), daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _sample(self, found: str) -> None:
        query = "--query-gpu=utilization.gpu,memory.used"
        while not self._stopped.is_set():
            try:
                done = subprocess.run(
                    [found, query, "--format=csv,noheader,nounits"],
                    capture_output=True,
                    timeout=20,
                    stdin=subprocess.DEVNULL,
                )
            except (OSError, subprocess.TimeoutExpired):
                return
            rows = [row.split(",") for row in done.stdout.decode("utf-8", "replace").splitlines()]
            self.latest = [
                [int(word) if word.strip().isdigit() else 0 for word in row]
                for row in rows
                if len(row) == 2
            ]
            self._stopped.wait(_SAMPLE_S)


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
