from __future__ import annotations

from remote.sandbox.tiny_model import HEADS, HIDDEN, KV_HEADS, SHARDS, config, shapes, split


def test_the_shards_hold_every_weight_once_in_order() -> None:
    shards = split(shapes())

    assert len(shards) == SHARDS
    assert all(shards)
    assert [name for shard in shards for name in shard] == list(shapes())


def test_the_shapes_are_those_of_the_configuration() -> None:
    settings = config(end_id=0)
    found = shapes()
    kv = KV_HEADS * HIDDEN // HEADS

    assert found["model.layers.1.self_attn.k_proj.weight"] == (kv, settings["hidden_size"])
    assert found["lm_head.weight"] == (settings["vocab_size"], settings["hidden_size"])
    layers = {name.split(".")[2] for name in found if name.startswith("model.layers.")}
    assert len(layers) == settings["num_hidden_layers"]
