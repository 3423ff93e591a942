"""The host's NVIDIA GPUs, as nvidia-smi prints them; reading the text is the client's part."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

GPU_FIELDS = "index,name,uuid,memory.total,memory.used,driver_version,compute_cap"
APP_FIELDS = "gpu_uuid,pid,used_memory"


def ask() -> dict[str, Any]:
    """nvidia-smi's CSV of GPUs and of processes on them, or why there is none."""
    program = shutil.which("nvidia-smi", path="/usr/bin:/usr/local/bin:/usr/local/nvidia/bin:/bin")
    if program is None:
        return {"reason": "no nvidia-smi on this host"}
    answers = {}
    for name, what in (
        ("gpus", f"--query-gpu={GPU_FIELDS}"),
        ("apps", f"--query-compute-apps={APP_FIELDS}"),
    ):
        try:
            done = subprocess.run(
                [program, what, "--format=csv,noheader,nounits"],
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
