"""Stacks that are no exception: faulthandler's dumps, py-spy's, and native backtraces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from remote.core.log_lines import RANK_TAG, LogLine
from remote.core.tracebacks import Frame

MAX_STACKS = 200
MAX_FRAMES = 200


class StackKind(str, Enum):
    """Who printed a stack."""

    FAULTHANDLER = "faulthandler"
    PY_SPY = "py-spy"
    NATIVE = "native"


@dataclass(frozen=True)
class Stack:
    """One thread's stack, innermost frame first, as all three print it."""

    kind: StackKind
    thread: str  #: ``MainThread``, a thread id, or what the dump calls it
    process: str  #: py-spy's process title (``sglang::scheduler_TP6``); empty for the others
    frames: tuple[Frame, ...]
    line: int  #: where it begins
    rank: str = ""


_PROCESS = re.compile(r"Process \d+: (?P<title>.+)")
_PY_SPY_THREAD = re.compile(r'Thread (?:\d+|0x[0-9A-F]+) \((?P<state>[^)]*)\): "(?P<name>[^"]*)"')
#: A native function's name may hold spaces and brackets.
_PY_SPY_FRAME = re.compile(r"\s+(?P<function>\S.*?) \((?P<path>[^():]+)(?::(?P<line>\d+))?\)")
_TAG = re.compile(rf"_({RANK_TAG})(?=_|:|\Z)")
_FAULT_THREAD = re.compile(
    r"(?:Current thread|Thread) (?P<name>0x[0-9a-f]+).*\(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'\s+File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
_NATIVE_HEAD = re.compile(r"==== backtrace \(tid: *(?P<name>\d+)\) ====")
_NATIVE_FRAME = re.compile(
    r"\s*(?:#|frame #)?\d+:? +(?:0x[0-9a-f]+ )?(?:in )?(?P<function>\S.*?)"
    r"(?: \+ 0x[0-9a-f]+.*| +(?:at )?(?P<path>[^\s:]+):(?P<line>\d+))?$"
)
_HEADS = (
    (_PY_SPY_THREAD, StackKind.PY_SPY, _PY_SPY_FRAME),
    (_FAULT_THREAD, StackKind.FAULTHANDLER, _FAULT_FRAME),
    (_NATIVE_HEAD, StackKind.NATIVE, _NATIVE_FRAME),
)


class StackCollector:
    """Takes lines one by one and keeps the stacks among them."""

    def __init__(self) -> None:
        self.stacks: list[Stack] = []
        self._frame: re.Pattern[str] | None = None
        self._process = ""

    def take(self, line: LogLine) -> bool:
        """Whether the line belongs to a stack."""
        text = line.text
        if self._frame is not None:
            found = self._frame.fullmatch(text)
            if found is not None:
                self._add(found)
                return True
            self._frame = None
        if not text.startswith(("Thread ", "Current thread ", "Process ", "==== ")):
            return False
        if process := _PROCESS.fullmatch(text):
            self._process = process["title"]
            return True
        for head, kind, frame in _HEADS:
            if found := head.match(text):
                self._frame = frame
                process_title = self._process if kind is StackKind.PY_SPY else ""
                rank = line.rank or " ".join(_TAG.findall(process_title))
                stack = Stack(kind, found["name"], process_title, (), line.number, rank)
                if len(self.stacks) < MAX_STACKS:
                    self.stacks.append(stack)
                return True
        return False

    def _add(self, found: re.Match[str]) -> None:
        stack = self.stacks[-1]
        if len(stack.frames) < MAX_FRAMES:
            number = int(found["line"][:9]) if found["line"] else 0
            frame = Frame(found["path"] or "", number, found["function"].strip())
            self.stacks[-1] = Stack(
                stack.kind,
                stack.thread,
                stack.process,
                (*stack.frames, frame),
                stack.line,
                stack.rank,
            )
