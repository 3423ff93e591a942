"""The ``server_args=`` line that SGLang logs first, as a mapping.

Up to 0.5.15 it is the repr of a dataclass, ``ServerArgs(tp_size=8, …)``; by 0.5.23 the repr of a
dictionary. Neither is a Python literal: objects print themselves into it (``<Kind.FULL: 0>``),
and a log may end in the middle of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

_START = re.compile(r"\bserver_args=(?=\{|[A-Za-z_][\w.]*\()")
_STRING = re.compile(r"""[bBrRuU]{0,2}('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_WORDS: Mapping[str, object] = {"None": None, "True": True, "False": False}


class _Truncated(Exception):
    """The line ends within a value."""


def parse(line: str) -> dict[str, object] | None:
    """The arguments of a log line, or None where it is no ``server_args=`` line.

    Values become JSON values: tuples and sets lists, nested dataclasses mappings, and whatever
    has no literal its own text. Of a line cut short, the arguments before the cut.
    """
    start = _START.search(line)
    if start is None:
        return None
    reader = _Reader(line, start.end())
    arguments: dict[str, object] = {}
    try:
        if line[reader.at] == "{":
            reader.mapping(arguments)
        else:
            reader.at = line.index("(", reader.at)
            reader.keywords(arguments)
    except _Truncated:
        pass
    return arguments


class _Reader:
    """Reads reprs from a text, one value at a time from ``at``."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def mapping(self, into: dict[str, object]) -> None:
        """``{key: value, …}``."""
        self.at += 1
        while not self.closed("}"):
            key = self.value(":")
            self.expect(":")
            into[str(key)] = self.value(",}")
            self.skip(",")

    def keywords(self, into: dict[str, object]) -> None:
        """``(name=value, …)``, up to the first argument that is not named."""
        self.at += 1
        while not self.closed(")"):
            keyword = _KEYWORD.match(self.text, self.at)
            if keyword is None:
                raise _Truncated
            self.at = keyword.end()
            into[keyword[1]] = self.value(",)")
            self.skip(",")

    def value(self, ends: str) -> object:
        """One value, which in its containers ends before one of ``ends``."""
        self.blanks()
        first = self.peek()
        begin = self.at
        string = _STRING.match(self.text, self.at)
        if string is not None:
            self.at = string.end()
            return self.literal(begin)
        if first in "'\"":
            raise _Truncated
        if first in "[(":
            return self.sequence("]" if first == "[" else ")")
        if first == "{":
            return self.braces()
        if first == "<":
            return self.opaque()
        name = _NAME.match(self.text, self.at)
        if name is not None and self.text[name.end() : name.end() + 1] == "(":
            return self.call(name.end())
        while self.peek() not in ends:
            self.at += 1
        word = self.text[begin : self.at].strip()
        return _WORDS[word] if word in _WORDS else _number(word)

    def sequence(self, end: str) -> list[object]:
        self.at += 1
        values = []
        while not self.closed(end):
            values.append(self.value("," + end))
            self.skip(",")
        return values

    def braces(self) -> object:
        """A dictionary, or a set as a list."""
        begin = self.at
        mapping: dict[str, object] = {}
        self.at += 1
        if not self.closed("}"):
            self.value(":,}")
            self.blanks()
            is_set = self.peek() != ":"
            self.at = begin
            if is_set:
                return self.sequence("}")
        self.at = begin
        self.mapping(mapping)
        return mapping

    def call(self, opening: int) -> object:
        """``Name(a=1)`` as a mapping, ``Path('/x')`` as its one argument, else the text."""
        begin = self.at
        self.at = opening
        if _KEYWORD.match(self.text, opening + 1):
            mapping: dict[str, object] = {}
            self.keywords(mapping)
            return mapping
        arguments = self.sequence(")")
        return arguments[0] if len(arguments) == 1 else self.text[begin : self.at]

    def opaque(self) -> str:
        """``<…>``, which may hold more of its kind."""
        begin = self.at
        depth = 0
        while True:
            depth += {"<": 1, ">": -1}.get(self.peek(), 0)
            self.at += 1
            if depth == 0:
                return self.text[begin : self.at]

    def literal(self, begin: int) -> object:
        text = self.text[begin : self.at]
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
        return value if isinstance(value, str) else text

    def closed(self, end: str) -> bool:
        """Whether the container ends here; then it is left."""
        self.blanks()
        if self.peek() != end:
            return False
        self.at += 1
        return True

    def expect(self, mark: str) -> None:
        self.blanks()
        if self.peek() != mark:
            raise _Truncated
        self.at += 1

    def skip(self, mark: str) -> None:
        self.blanks()
        if self.peek() == mark:
            self.at += 1

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def peek(self) -> str:
        if self.at >= len(self.text):
            raise _Truncated
        return self.text[self.at]


def _number(word: str) -> object:
    """The number a word spells, else the word; nan and inf are words to JSON."""
    for convert in (int, float):
        try:
            number = convert(word)
        except ValueError:
            continue
        return number if number == number and abs(number) != float("inf") else word
    return word
