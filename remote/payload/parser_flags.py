"""Print the command line that the installed SGLang understands, as one JSON line.

Run by the host's own interpreter: ``python -I parser_flags.py``. Standard library and SGLang only.
Without a GPU the caller sets ``SGLANG_USE_CPU_ENGINE=1``, or the import fails on the kernels.

    {"sglang": "0.5.9", "flags": {"tp-size": {"type": "int", "default": 1, "nargs": null}, …}}
    {"error": "ModuleNotFoundError: No module named 'sglang'"}

Keys of a flag, each left out where argparse has nothing: ``type`` (its converter's name, ``flag``
for one that takes no value), ``default``, ``choices``, ``nargs`` (always, of one that takes a
value), ``action`` (where it isn't argparse's plain storing).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys

_PLAIN_ACTIONS = ("_StoreAction", "_StoreTrueAction")


def installed_parser() -> dict[str, object]:
    """The answer's ``sglang`` and ``flags``; importing SGLang takes seconds."""
    from importlib.metadata import version

    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags = {}
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                flags[option[2:]] = described(action)
    return {"sglang": version("sglang"), "flags": flags}


def described(action: argparse.Action) -> dict[str, object]:
    """One flag in JSON values."""
    flag: dict[str, object] = {}
    if action.nargs == 0:
        flag["type"] = "flag"
    else:
        flag["nargs"] = action.nargs
        if action.type is not None:
            flag["type"] = getattr(action.type, "__name__", str(action.type))
    if action.default not in (None, argparse.SUPPRESS):
        finite = not isinstance(action.default, float) or math.isfinite(action.default)
        flag["default"] = action.default if finite else str(action.default)
    if action.choices is not None:
        flag["choices"] = sorted(str(choice) for choice in action.choices)
    kind = type(action).__name__
    if kind not in _PLAIN_ACTIONS:
        flag["action"] = kind
    return flag


def reasons(failure: BaseException | None) -> list[str]:
    """The failure and what caused it, the first cause last: that is the one to mend."""
    lines = []
    while failure is not None:
        lines.append(f"{type(failure).__name__}: {failure}")
        failure = failure.__cause__ or failure.__context__
    return lines


def main() -> None:
    # What SGLang and its imports print goes to stderr: stdout is the answer's alone.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = installed_parser()
    except (Exception, SystemExit) as failure:
        answer = {"error": "\n".join(reasons(failure))}
    line = json.dumps(answer, default=repr) + "\n"
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(answer_fd, "wb") as stream:
        stream.write(line.encode())
    # Threads that the imports left behind must not keep the caller waiting.
    os._exit(0)


if __name__ == "__main__":
    main()
