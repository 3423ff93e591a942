"""Secrets and prompts taken out of what is kept or shown: scripts, command lines, logs, evidence.

Three nets, one behind another: values that are known to be secret, wherever they stand; values
behind a telling name (``HF_TOKEN=…``, ``--api-key …``, ``Authorization: …``); and the shapes that
tokens have. Requests that a server wrote to its log are masked whole, for they hold prompts.
Works on bytes: what is no secret passes unchanged, whatever its encoding.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from remote.core.shell import MASK, is_secret

_MASK = MASK.encode()
#: A shorter value is a word like any other, and would be masked all over a log.
_LEAST_CHARS = 6
#: A line is scrubbed as a whole, however long it gets; beyond this it is cut.
_MAX_LINE_BYTES = 1024 * 1024

_ENDINGS = rb"secret|passw(?:or)?d?|passphrase|api[-_]?key|authorization|credentials?"
#: A name, what stands between it and its value, and the value: quoted, or up to the next break.
_NAMED = re.compile(
    rb"(?P<name>[\w-]{0,60}(?:%(e)s|[-_]token)[\w-]{0,60})"
    rb"(?P<between>[\"']?(?:\s*[=:]\s*|[\"'],\s*))"
    rb"(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|(?:Bearer|Basic|Token)\s+[^\s\"',;)]+"
    rb"|[^\s\"',;(){}\[\]]+)" % {b"e": _ENDINGS},
    re.IGNORECASE,
)
#: The same for a flag and its value as two words.
_FLAG = re.compile(
    rb"(?P<name>--[\w-]{0,60}(?:%(e)s|-token))(?P<between>[\"']?,?\s+)"
    rb"(?P<value>\"[^\"]*\"|'[^']*'|(?!--)[^\s\"',\]]+)" % {b"e": _ENDINGS},
    re.IGNORECASE,
)
_SHAPES = re.compile(
    rb"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bnvapi-[\w-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}"
    rb"|\bAKIA[0-9A-Z]{16}\b|\bxox[abp]-[\w-]{10,}|(?<=Bearer )[\w.~+/-]{6,}=*"
    rb"|(?<=://)[^\s/:@\"']+:[^\s/@\"']+(?=@)"
)
#: Requests as SGLang logs them, and what users send to its endpoints.
_REQUEST = re.compile(
    rb"(?P<head>(?:Receive|Finish|Received request|Finished request)\b:? ?)(?P<rest>.+)"
)
_PROMPT = re.compile(
    rb"(?P<name>[\"'](?:prompt|text|content|input_text|messages)[\"']\s*:\s*)"
    rb"(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\[[^\]]*\])"
)
#: What a line must hold, in lower case, for each of the above to have work.
_NAMED_WORDS = (
    *(b"secret", b"passw", b"passphrase", b"api_key", b"api-key", b"apikey", b"authoriz"),
    *(b"credential", b"_token", b"-token"),
)
_SHAPES_WORDS = (
    *(b"hf_", b"sk-", b"nvapi-", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"akia", b"xox"),
    *(b"bearer", b"@"),
)
_REQUEST_WORDS = (b"receive", b"finish")
_PROMPT_WORDS = (b"prompt", b"text", b"content", b"messages")
_SUSPICIOUS = (*_NAMED_WORDS, *_SHAPES_WORDS, *_REQUEST_WORDS, *_PROMPT_WORDS)
#: What differs between the lines that a log repeats, and stands in none of these words.
_FIGURES = b"0123456789."
#: How many shapes and lines are remembered, and how long they may be.
_REMEMBERED = 4096
_REMEMBERED_BYTES = 1000
#: Lines of which a serving log is full; they hold figures and nothing else.
_STEPS = (b"] Prefill batch", b"] Decode batch")
_STEP_WITHIN = 80
_NO_VALUE = frozenset({b"none", b"null", b"true", b"false", b"''", b'""', _MASK, b"..."})


class Scrubber:
    """Takes secrets out.

    Args:
        names: variables and flags that are secret beyond those whose name tells it.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(map(_plain, names))
        self._values: tuple[bytes, ...] = ()  # the longest first
        named = (name.translate(None, _FIGURES) for name in _spellings(self.names))
        self._words = (*_SUSPICIOUS, *named)
        self._clean: set[bytes] = set()  # shapes of lines that hold none of them
        self._scrubbed: dict[bytes, bytes] = {}  # lines that hold one, as they are shown
        listed = b"|".join(re.escape(name.encode()).replace(b"_", b"[-_]") for name in self.names)
        self._also = (
            re.compile(
                rb"(?P<name>(?<![\w])(?:--)?(?:%s))(?P<between>[\"']?(?:\s*[=:]\s*|,?\s+))"
                rb"(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"',;)]+)" % listed,
                re.IGNORECASE,
            )
            if listed
            else None
        )

    def is_secret(self, name: str) -> bool:
        """Whether a variable or flag of that name holds something not to be shown."""
        return is_secret(name) or _plain(name) in self.names

    def learn(self, values: Iterable[str]) -> None:
        """Mask these wherever they stand."""
        found = {value.encode() for value in values if len(value) >= _LEAST_CHARS}
        self._values = tuple(sorted({*self._values, *found}, key=lambda each: (-len(each), each)))

    def learn_variables(self, variables: Mapping[str, str]) -> None:
        """Mask the values of those whose name says so, wherever they stand."""
        self.learn(value for name, value in variables.items() if self.is_secret(name))

    def learn_words(self, words: Sequence[str]) -> None:
        """Mask the values that a command line gives to secret flags and variables."""
        found = []
        for word, following in zip(words, [*words[1:], ""], strict=False):
            name, equals, value = word.partition("=")
            if not self.is_secret(name):
                continue
            if equals:
                found.append(value)
            elif name.startswith("-"):
                found.append(following)
        self.learn(found)

    def learn_script(self, script: str) -> None:
        """Mask the secrets that a start script exports or passes, wherever they stand."""
        try:
            self.learn_words(shlex.split(script, comments=True))
        except ValueError:
            self.learn_words(script.split())

    def data(self, data: bytes) -> bytes:
        """Whole lines, scrubbed."""
        for value in self._values:
            data = data.replace(value, _MASK)
        # Most lines of a log differ from one before them in figures only.
        shapes = data.translate(None, _FIGURES).splitlines()
        if self._clean.issuperset(shapes):
            return data
        lines = data.splitlines(keepends=True)
        if len(shapes) != len(lines):  # figures alone between a carriage return and a newline
            shapes = [line.translate(None, _FIGURES).rstrip(b"\r\n") for line in lines]
        return b"".join(
            [
                line if shape in self._clean else self._line(line, shape)
                for line, shape in zip(lines, shapes, strict=True)
            ]
        )

    def text(self, text: str) -> str:
        return self.data(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def _line(self, line: bytes, shape: bytes) -> bytes:
        """A line whose shape is not known to be clean."""
        known = self._scrubbed.get(line)
        if known is not None:
            return known
        head = line[:_STEP_WITHIN]
        step = _STEPS[0] in head or _STEPS[1] in head
        # A word that stands in the line stands in its shape, too.
        if step or not _any(self._words, shape.lower()):
            if len(line) <= _REMEMBERED_BYTES:
                if len(self._clean) >= _REMEMBERED:
                    self._clean.clear()
                self._clean.add(shape)
            return line
        scrubbed = self._masked(line)
        if len(line) <= _REMEMBERED_BYTES:
            if len(self._scrubbed) >= _REMEMBERED:
                self._scrubbed.clear()
            self._scrubbed[line] = scrubbed
        return scrubbed

    def _masked(self, line: bytes) -> bytes:
        if self._also is not None:
            line = self._also.sub(_masked, line)
        lowered = line.lower()
        if _any(_REQUEST_WORDS, lowered):
            line = _REQUEST.sub(rb"\g<head>" + _MASK, line)
        if _any(_NAMED_WORDS, lowered):
            line = _NAMED.sub(_masked_if_secret, line)
            line = _FLAG.sub(_masked, line)
        if _any(_PROMPT_WORDS, lowered):
            line = _PROMPT.sub(rb"\g<name>" + _MASK, line)
        if _any(_SHAPES_WORDS, lowered):
            line = _SHAPES.sub(_MASK, line)
        return line


class ScrubbedStream:
    """Bytes in, scrubbed bytes out, line by line; any chunking gives the same bytes."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """What is complete: whole lines, those before a carriage return included."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(self._pending) + len(data) > _MAX_LINE_BYTES:
            end = len(data)
        if not end:
            self._pending += data
            return b""
        # One copy: what is pulled comes in blocks of a megabyte.
        whole = b"".join((self._pending, memoryview(data)[:end]))
        self._pending = data[end:]
        return self._scrubber.data(whole)

    def finish(self) -> bytes:
        """The last line, where the input did not end in a newline."""
        last, self._pending = self._pending, b""
        return self._scrubber.data(last)


def _any(words: Iterable[bytes], text: bytes) -> bool:
    return any(word in text for word in words)


def _spellings(names: Iterable[str]) -> Iterator[bytes]:
    """A name with underscores and with dashes, as text may hold it."""
    for name in names:
        yield from {name.encode(), name.replace("_", "-").encode()}


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _masked(found: re.Match[bytes]) -> bytes:
    value = found["value"]
    bare = value.strip(b"\"'")
    placeholder = found["name"].lstrip(b"-").replace(b"-", b"_").upper()  # of argparse's usage
    if not bare or bare.lower() in _NO_VALUE or bare == placeholder:
        return found[0]
    quote = value[:1] if value[:1] in (b'"', b"'") else b""
    return found["name"] + found["between"] + quote + _MASK + quote


def _masked_if_secret(found: re.Match[bytes]) -> bytes:
    name = found["name"].decode("ascii", "replace")
    counted = found["value"].isdigit() and name.lower().endswith("token")  # time_per_output_token=3
    return _masked(found) if is_secret(name) and not counted else found[0]
