"""Print the flags that the installed SGLang's bench client takes, as one JSON line.

Run by the host's own interpreter, as `parser_flags.py` is. The client builds its parser where it
is run as a program, so it is run as one, up to the moment when it would read its command line.

    {"sglang": "0.5.9", "flags": {"backend": {"choices": ["sglang", …]}, "seed": {}, …}}
    {"error": "ModuleNotFoundError: No module named 'sglang'"}
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from typing import Any, NoReturn


class _Built(BaseException):
    """The parser is there, whole; no handler of the client's is to swallow it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def _stop_here(parser: argparse.ArgumentParser, *args: Any, **options: Any) -> NoReturn:
    raise _Built(parser)


def client_parser() -> argparse.ArgumentParser:
    """The bench client's parser."""
    argparse.ArgumentParser.parse_args = _stop_here  # type: ignore[assignment]
    argparse.ArgumentParser.parse_known_args = _stop_here  # type: ignore[assignment]
    sys.argv = ["bench_serving"]
    try:
        runpy.run_module("sglang.bench_serving", run_name="__main__")
    except _Built as built:
        return built.parser
    raise RuntimeError("sglang.bench_serving did not read a command line")


def described(parser: argparse.ArgumentParser) -> dict[str, dict[str, object]]:
    """Each flag with its choices, where it has some."""
    return {
        option[2:]: (
            {} if action.choices is None else {"choices": sorted(map(str, action.choices))}
        )
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }


def main() -> None:
    # What the client and its imports print goes to stderr: stdout is the answer's alone.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        from importlib.metadata import version

        answer: dict[str, object] = {
            "sglang": version("sglang"),
            "flags": described(client_parser()),
        }
    except (Exception, SystemExit) as failure:
        answer = {"error": f"{type(failure).__name__}: {failure}"}
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(answer_fd, "wb") as stream:
        stream.write(json.dumps(answer).encode() + b"\n")
    # Threads that the imports left behind must not keep the caller waiting.
    os._exit(0)


if __name__ == "__main__":
    main()
