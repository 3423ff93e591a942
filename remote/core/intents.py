"""What can be wanted of a server, in words that no SGLang version changes.

A profile says ``piecewise_cuda_graph: on``; which flags say that to the installed SGLang is
decided in :mod:`remote.core.flags`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, TypeAlias

from remote.core.fields import (
    Fields,
    described,
    is_source,
    misses_source,
    not_carried,
    on_or_off,
    whole_number,
)
from remote.core.nearest import did_you_mean

Kind = Literal["switch", "count", "name"]

#: What is wanted. False of a count or a name is "off": left to SGLang.
Want: TypeAlias = bool | int | str
#: A raw flag's value: True is the bare flag, False leaves it out, a tuple is several words.
FlagValue: TypeAlias = bool | str | tuple[str, ...]

#: Intents in the order their flags take on the command line.
INTENTS: Mapping[str, Kind] = {
    "tensor_parallel": "count",
    "expert_parallel": "count",
    "data_parallel": "count",
    "quantization": "name",
    "kv_cache_dtype": "name",
    "attention_backend": "name",
    "moe_runner": "name",
    "fp4_gemm_backend": "name",
    "cuda_graph": "switch",
    "piecewise_cuda_graph": "switch",
    "max_decode_batch": "count",
    "mscclpp": "switch",
    "single_batch_overlap": "switch",
    "two_batch_overlap": "switch",
    "metrics": "switch",
}

#: Flags that follow from the host's entry, and the setting that says them.
RESERVED: Mapping[str, str] = {
    "model-path": "model",
    "model": "model",
    "host": "bind",
    "port": "port",
}


def shown(want: Want | None) -> str:
    """A want as a profile would write it."""
    if want is None:
        return "not asked for"
    if isinstance(want, bool):
        return "on" if want else "off"
    return str(want)


def read_wants(fields: Fields) -> dict[str, Want | None]:
    """The section as intents; null takes one away. Wrong ones are noted."""
    read: dict[str, Want | None] = {}
    for name, value in fields.entries().items():
        kind = INTENTS.get(name)
        if kind is None:
            fields.problem(name, f"unknown intent{did_you_mean(name, INTENTS)}")
        elif value is None:
            read[name] = None
        else:
            want = _want(kind, value)
            if want is None:
                fields.problem(name, f"wanted {_WANTED[kind]}, found {described(value)}")
            else:
                read[name] = want
    return read


def read_reasons(fields: Fields) -> dict[str, str]:
    """The section as ``intent: why this host can't do it``."""
    reasons = fields.texts()
    for name in reasons:
        if name not in INTENTS:
            fields.problem(name, f"unknown intent{did_you_mean(name, INTENTS)}")
    return reasons


def read_flags(fields: Fields) -> dict[str, FlagValue | None]:
    """The section as raw flags; null takes one away. Whether SGLang knows them is asked later."""
    read: dict[str, FlagValue | None] = {}
    for name, value in fields.entries().items():
        if name.startswith("-"):
            fields.problem(name, f"write it without the dashes: {name.lstrip('-')}")
        elif name in RESERVED:
            fields.problem(name, f"follows from the host's entry: set hosts.NAME.{RESERVED[name]}")
        elif not name or "=" in name or not name.isascii() or not name.isprintable():
            fields.problem(name, "is not the name of a flag")
        elif value is None:
            read[name] = None
        elif (wrong := misses_source(name, value)) is not None:
            fields.problem(name, wrong)
        elif is_source(value):
            continue  # where a secret is kept: `core.secret_values.read_sources` reads it
        else:
            flag = _flag_value(value)
            if flag is None:
                wanted = "true, false, text, a number, a list of them or a mapping for JSON"
                fields.problem(name, f"wanted {wanted}, found {described(value)}")
                continue
            unfit = not_carried("".join(flag) if isinstance(flag, tuple) else str(flag))
            if unfit:
                fields.problem(name, unfit)
            else:
                read[name] = flag
    return read


_WANTED: Mapping[Kind, str] = {
    "switch": "on or off",
    "count": "a whole number above 0, or off",
    "name": "a name, or off",
}


def _want(kind: Kind, value: object) -> Want | None:
    if kind == "switch":
        return on_or_off(value)
    if value is False or (isinstance(value, str) and value.strip().lower() == "off"):
        return False
    if kind == "count":
        number = whole_number(value)
        return number if number is not None and number > 0 else None
    return value if isinstance(value, str) and value and not not_carried(value) else None


def _flag_value(value: object) -> FlagValue | None:
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, Mapping):
        try:
            return json.dumps(value, ensure_ascii=False)
        except TypeError:
            return None
    if isinstance(value, (list, tuple)) and value:
        words = [_flag_value(word) for word in value]
        if all(isinstance(word, str) for word in words):
            return tuple(str(word) for word in words)
    return None
