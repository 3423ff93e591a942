"""The trace scanner run on the host, in an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any


def run(
    script: bytes,
    python: str,
    env: dict[str, str],
    request: dict[str, Any],
    timeout_s: float = 300,
) -> dict[str, Any]:
    """Run the zipped scanner; ``{"answer": …}`` as `probe/main.py` gives it, or ``{"error": …}``.

    The interpreter gets ``env`` and nothing else, and is neither isolated nor without site: the
    patches' `.pth` files act in it as in a server.
    """
    with tempfile.TemporaryDirectory(prefix="sglang-remote-") as folder:
        path = os.path.join(folder, "probe.zip")
        with open(path, "wb") as file:
            file.write(script)
        try:
            done = subprocess.run(
                [python, path],
                input=json.dumps(request).encode(),
                capture_output=True,
                timeout=timeout_s,
                cwd=folder,
                env={"HOME": os.path.expanduser("~"), "LANG": "C.UTF-8", **env},
            )
        except subprocess.TimeoutExpired as expired:
            return {"error": f"no answer in {timeout_s:.0f} s", "evidence": _tail(expired.stderr)}
    text = done.stdout.decode("utf-8", "replace").strip()
    try:
        answer = json.loads(text.splitlines()[-1]) if text else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return {"error": f"exit status {done.returncode}", "evidence": _tail(done.stderr)}
    return {"answer": answer, "stderr": _tail(done.stderr)}


def _tail(stderr: bytes | None, lines: int = 12) -> list[str]:
    return (stderr or b"").decode("utf-8", "replace").strip().splitlines()[-lines:]
