"""Is the model's folder whole? Config, tokenizer, and every shard that the index names."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_CONFIGS = frozenset({"config.json", "params.json"})
_TOKENIZERS = frozenset(
    {
        "tokenizer.json",
        "tokenizer.model",
        "tiktoken.model",
        "tekken.json",
        "spiece.model",
        "vocab.json",
        "vocab.txt",
    }
)
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<of>[0-9]{5})(?P<ending>\.\w+)\Z")
#: A longer header is none: the file is damaged.
_MAX_HEADER_BYTES = 100 * 1024 * 1024


def look(path: str, whole: bool = False) -> dict[str, Any]:
    """What a start would miss in the folder.

    Args:
        whole: read each safetensors header too, to find files that end before their last tensor.

    Returns:
        ``config`` and ``tokenizer`` (there or not), ``index`` (its name, or None), ``missing``,
        ``empty`` and ``short`` (names of files), ``weights`` (their count), ``weight_bytes``.

    Raises:
        OSError: the folder can't be read.
    """
    if os.path.isfile(path):  # one file that holds everything
        return _found(config=True, tokenizer=True, sizes={path: os.path.getsize(path)})
    names = set(os.listdir(path))
    index = next((name for name in _INDEXES if name in names), None)
    indexed = _indexed(os.path.join(path, index)) if index else None
    damaged = [index] if index and indexed is None else []
    wanted = _numbered(names) if indexed is None else indexed
    there = {name for name in names if name.endswith(_WEIGHTS)}
    weights = sorted(wanted & names if wanted else there)
    sizes = {}
    for name in weights:
        try:
            sizes[name] = os.path.getsize(os.path.join(path, name))
        except FileNotFoundError:  # a link of the hub's cache whose blob is gone
            wanted.add(name)
    short = [
        name
        for name, size in sizes.items()
        if whole and size and name.endswith(".safetensors") and _short(path, name, size)
    ]
    return _found(
        config=bool(names & _CONFIGS),
        tokenizer=bool(names & _TOKENIZERS) or any(name.endswith(".tiktoken") for name in names),
        sizes=sizes,
        index=index,
        missing=damaged + sorted(wanted - sizes.keys()),
        short=short,
    )


def _found(
    *,
    config: bool,
    tokenizer: bool,
    sizes: dict[str, int],
    index: str | None = None,
    missing: list[str] | None = None,
    short: list[str] | None = None,
) -> dict[str, Any]:
    return {
        "config": config,
        "tokenizer": tokenizer,
        "index": index,
        "missing": missing or [],
        "empty": [name for name, size in sizes.items() if not size],
        "short": short or [],
        "weights": len(sizes),
        "weight_bytes": sum(sizes.values()),
    }


def snapshot(model: str, variables: dict[str, str]) -> str | None:
    """Where the hub's cache on this host has the model of that name; None where it has not.

    Args:
        variables: the server's own; they may move the cache.
    """
    home = variables.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    hub = variables.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    found = glob.glob(
        os.path.join(glob.escape(hub), f"models--{model.replace('/', '--')}", "snapshots", "*")
    )
    return max(found, key=os.path.getmtime) if found else None


def _indexed(path: str) -> set[str] | None:
    """The files that an index names; None where it can't be understood."""
    try:
        with open(path, encoding="utf-8") as file:
            return set(json.load(file)["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def _numbered(names: set[str]) -> set[str]:
    """All of ``…-00001-of-00003.…`` where any of them is there."""
    wanted = set()
    for match in filter(None, map(_NUMBERED.match, names)):
        if match["ending"] in _WEIGHTS:
            wanted |= {
                f"{match['stem']}-{number:05}-of-{match['of']}{match['ending']}"
                for number in range(1, int(match["of"]) + 1)
            }
    return wanted


def _short(folder: str, name: str, size: int) -> bool:
    """Whether the file ends before the last tensor that its header tells of.

    Format: 8 bytes of header length, little-endian; the header in JSON; the tensors.
    """
    with open(os.path.join(folder, name), "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_MAX_HEADER_BYTES, size - 8):
            return True
        try:
            header = json.loads(file.read(length))
            ends = [
                each["data_offsets"][1] for key, each in header.items() if key != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return True
    return 8 + length + max(ends, default=0) > size
