"""Runs in the venv's interpreter: imports what a server imports and says what torch sees.

Prints one line of JSON before and after each import, so that one that never ends is known by name.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

_MODULES = ("torch", "transformers", "flashinfer", "sgl_kernel", "sglang.srt.server_args")


def say(**row: Any) -> None:
    sys.stdout.write("\n" + json.dumps({"doctor": row}) + "\n")
    sys.stdout.flush()


def main() -> None:
    for name in _MODULES:
        say(module=name, state="begun")
        began = time.monotonic()
        try:
            importlib.import_module(name)
        except BaseException as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == name.split(".")[0]
            why = f"{type(error).__name__}: {error}".strip().splitlines()
            say(module=name, state="missing" if missing else "failed", why=why[:3])
        else:
            say(module=name, state="ok", seconds=round(time.monotonic() - began, 1))
    if "torch" in sys.modules:
        say(torch=devices(sys.modules["torch"]))


def devices(torch: Any) -> dict[str, Any]:
    """What torch can use: its CUDA, the driver's, and the devices."""
    found: dict[str, Any] = {"cuda": torch.version.cuda, "devices": [], "driver_cuda": None}
    try:
        found["available"] = bool(torch.cuda.is_available())
        if found["available"]:
            found["architectures"] = torch.cuda.get_arch_list()
            found["devices"] = [
                torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
            ]
            found["driver_cuda"] = torch._C._cuda_getDriverVersion()
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


main()
