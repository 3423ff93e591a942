"""A model's folder, whole or not, told before a start finds out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from remote.payload import model_files

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def safetensors(bytes_of_data: int = 16) -> bytes:
    header = json.dumps({"t": {"dtype": "U8", "data_offsets": [0, bytes_of_data]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * bytes_of_data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    for name in SHARDS:
        (folder / name).write_bytes(safetensors())
    weights = {f"layer{number}": name for number, name in enumerate(SHARDS)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return folder


def test_a_whole_model_lacks_nothing(model: Path) -> None:
    found = model_files.look(str(model), whole=True)
    assert found["config"] and found["tokenizer"] and found["weights"] == 3
    assert (found["missing"], found["empty"], found["short"]) == ([], [], [])
    assert found["weight_bytes"] == 3 * len(safetensors())


def test_a_shard_that_the_index_names_is_missed(model: Path) -> None:
    (model / SHARDS[1]).unlink()
    assert model_files.look(str(model))["missing"] == [SHARDS[1]]
    (model / SHARDS[1]).symlink_to(model / "blob-that-is-gone")
    assert model_files.look(str(model))["missing"] == [SHARDS[1]]


def test_without_an_index_the_shards_own_numbers_tell(model: Path) -> None:
    (model / "model.safetensors.index.json").unlink()
    (model / SHARDS[2]).unlink()
    assert model_files.look(str(model))["missing"] == [SHARDS[2]]


def test_a_shard_that_ends_early_is_found_by_its_own_header(model: Path) -> None:
    content = safetensors()
    (model / SHARDS[0]).write_bytes(b"")
    (model / SHARDS[1]).write_bytes(content[:-1])
    (model / SHARDS[2]).write_bytes(content[:9])
    found = model_files.look(str(model), whole=True)
    assert found["empty"] == [SHARDS[0]] and found["short"] == SHARDS[1:]
    assert model_files.look(str(model))["short"] == []


def test_a_damaged_index_is_missed_itself(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"a"')
    assert model_files.look(str(model))["missing"] == ["model.safetensors.index.json"]


def test_config_and_tokenizer_are_missed(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "tokenizer.json").rename(model / "qwen.tiktoken")
    found = model_files.look(str(model))
    assert not found["config"] and found["tokenizer"]


def test_a_model_of_the_hubs_cache_is_found_where_the_variables_say(tmp_path: Path) -> None:
    variables = {"HF_HOME": str(tmp_path)}
    assert model_files.snapshot("org/m", variables) is None
    old, new = (tmp_path / "hub" / "models--org--m" / "snapshots" / name for name in "ab")
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (1, 1))
    assert model_files.snapshot("org/m", variables) == str(new)
