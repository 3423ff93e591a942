"""A mapping read key by key, with everything that is wrong in it said at once.

Settings and profiles come as untyped mappings. A reader asks :class:`Fields` for each key it
knows; wrong values are noted under their full path and a stand-in is returned, so that reading
goes on to the next. Whoever started the reading raises once at the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from remote.core.nearest import did_you_mean
from remote.core.shell import is_secret, variable_name
from remote.errors import ConfigError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
#: The one key of a mapping that says where a secret is kept, instead of holding it.
_SECRET_KINDS = frozenset({"env", "file", "command"})
_WHOLE = re.compile(r"[+-]?[0-9]+\Z")


class Problems:
    """What is wrong so far, each line beginning with the key's full path."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, path: str, what: str) -> None:
        self._lines.append(f"{path}: {what}")

    def raise_any(self, where: str, *, hint: str | None = None) -> None:
        """Raise where anything was noted.

        Args:
            where: what was read, as a person names it: ``the settings``, a profile's file.

        Raises:
            ConfigError: one line of evidence for each problem.
        """
        if self._lines:
            count = "one thing is" if len(self._lines) == 1 else f"{len(self._lines)} things are"
            raise ConfigError(f"{count} wrong in {where}", evidence=self._lines, hint=hint)


class Fields:
    """The keys of one mapping.

    Args:
        path: where the mapping stands (``hosts.gpu``), empty at the top.
        raw: the mapping itself; anything else is noted as a problem and read as empty.
        problems: where wrong values are noted.
    """

    def __init__(self, path: str, raw: object, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self._asked: list[str] = []
        self._raw: Mapping[str, object] = {}
        if isinstance(raw, Mapping):
            self._raw = {str(key): value for key, value in raw.items()}
        elif raw is not None:
            problems.add(path or "the file", f"wanted a mapping, found {described(raw)}")

    def where(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def problem(self, key: str, what: str) -> None:
        self.problems.add(self.where(key), what)

    def value(self, key: str) -> object:
        """The value as it stands; None where it is missing, null or empty text."""
        self._asked.append(key)
        value = self._raw.get(key)
        return None if value == "" else value

    def text(self, key: str, default: str | None = None) -> str:
        """Text without NUL; a number counts as its digits. Required where no default is given."""
        value = self.value(key)
        if value is None:
            if default is None:
                self.problem(key, "missing")
            return default or ""
        return self._read_text(key, value)

    def optional_text(self, key: str) -> str | None:
        value = self.value(key)
        return None if value is None else self._read_text(key, value)

    def whole(self, key: str, default: int | None = None, *, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, also as text (from the environment)."""
        value = self.value(key)
        if value is None:
            if default is None:
                self.problem(key, f"missing: wanted a whole number from {low} to {high}")
            return low if default is None else default
        number = whole_number(value)
        if number is None or not low <= number <= high:
            found = described(value)
            self.problem(key, f"wanted a whole number from {low} to {high}, found {found}")
            return low
        return number

    def seconds(self, key: str, default: float) -> float:
        """A duration above zero, also as text."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool) and isinstance(value, (int, float, str)):
            try:
                number = float(value)
            except ValueError:
                number = -1.0
            if 0 < number < float("inf"):
                return number
        self.problem(key, f"wanted a number of seconds above 0, found {described(value)}")
        return default

    def switch(self, key: str, default: bool) -> bool:
        value = self.value(key)
        if value is None:
            return default
        state = on_or_off(value)
        if state is None:
            self.problem(key, f"wanted true or false, found {described(value)}")
            return default
        return state

    def section(self, key: str) -> Fields:
        """The mapping under ``key``, to be read the same way."""
        return Fields(self.where(key), self.value(key), self.problems)

    def entries(self) -> dict[str, object]:
        """All of it, for mappings whose keys are the user's own."""
        self._asked.extend(self._raw)
        return dict(self._raw)

    def texts(self) -> dict[str, str]:
        """All of it, each value text."""
        return {key: self.text(key) for key in self._raw}

    def variables(self) -> dict[str, str | None]:
        """All of it as environment variables; null takes a variable away.

        A mapping says where a secret is kept, and is read by `core.secret_values.read_sources`.
        """
        read: dict[str, str | None] = {}
        for name, value in self.entries().items():
            try:
                variable_name(name)
            except ConfigError as wrong:
                self.problem(name, wrong.message)
                continue
            if is_source(value):
                continue
            if value is None or value == "":
                read[name] = None if value is None else ""
            elif isinstance(value, bool):
                # YAML reads on, off, yes and no as booleans: which word was meant is lost.
                self.problem(name, f"wanted text, found {described(value)}: put it in quotes")
            else:
                read[name] = self._read_text(name, value)
        return read

    def refuse_unknown(self, also_known: Collection[str] = ()) -> None:
        """Note every key that nobody asked for."""
        known = dict.fromkeys(self._asked)
        for key in self._raw:
            if key not in known and key not in also_known:
                self.problem(key, f"unknown key{did_you_mean(key, known)}")

    def _read_text(self, key: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            self.problem(key, f"wanted text, found {described(value)}")
            return ""
        text = str(value)
        unfit = not_carried(text)
        if unfit:
            self.problem(key, unfit)
            return ""
        return text


def is_source(value: object) -> bool:
    """Whether a setting says where a secret is kept, rather than what it is."""
    return isinstance(value, Mapping) and len(value) == 1 and {*value} <= _SECRET_KINDS


def misses_source(name: str, value: object) -> str | None:
    """What is wrong with a mapping that was meant to say where a secret is kept, if it was.

    A flag that takes JSON may be a mapping; one whose name is a secret's never is.
    """
    if not isinstance(value, Mapping) or is_source(value):
        return None
    if is_secret(name) or (value and {*value} <= _SECRET_KINDS):
        kinds = " or ".join(f"{{{kind}: …}}" for kind in sorted(_SECRET_KINDS))
        return f"wanted where it is kept, {kinds}, found {described(value)}"
    return None


def not_carried(text: str) -> str | None:
    """Why no path, variable or command line can carry the text, if that is so."""
    if "\0" in text:
        return "holds a NUL character, which no path or command line can carry"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds bytes that are no UTF-8"
    return None


def whole_number(value: object) -> int | None:
    """The whole number that ``value`` is or spells."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and _WHOLE.match(value.strip()):
        return int(value)
    return None


def on_or_off(value: object) -> bool | None:
    """The switch position that ``value`` is or spells."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    return None


def described(value: object) -> str:
    """A wrong value as an error shows it: its kind, and what it holds where that is short."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text {value[:60]!r}"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"a {type(value).__name__}"
