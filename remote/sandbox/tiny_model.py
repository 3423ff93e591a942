"""Makes a tiny Qwen2 folder: ``python tiny_model.py FOLDER``, by a Python that has torch.

Two layers with seeded random weights in three shards, and a byte-level BPE tokenizer trained on
the text below. It answers nonsense, but through the same code as a real model, and nonsense that
can be read: what decodes to nothing, a token that ends the text or one that the tokenizer doesn't
have, is never its answer. A bench takes an answer without text for a failure, and it is right.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LAYERS = 2
HIDDEN = 64
INTERMEDIATE = 128
HEADS = 4
KV_HEADS = 2
VOCABULARY = 1024
CONTEXT = 4096
SHARDS = 3
SEED = 20261129
END = "<|endoftext|>"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"

TEXT = """\
A server that answers is not yet the server that was started a minute ago.
The weights are read first, then the pool for keys and values is laid out, then it listens.
Each token takes one step through the layers; a batch of requests takes the step together.
What is measured once may be luck; what is measured twice, on a quiet machine, is a figure.
Numbers: 0 1 2 3 4 5 6 7 8 9 10 16 32 64 128 256 512 1024 2048 4096.
def add(a: int, b: int) -> int:
    return a + b
for request in queue: print(request.text, request.tokens, request.finished)
"""
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def main() -> None:
    """Build beside the folder named, and put it there whole."""
    folder = Path(sys.argv[1])
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    end_id, readable = write_tokenizer(beside)
    write_json(beside / "config.json", config(end_id))
    write_json(
        beside / "generation_config.json",
        {"bos_token_id": end_id, "eos_token_id": end_id, "pad_token_id": end_id},
    )
    write_weights(beside, readable)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def config(end_id: int) -> dict[str, object]:
    """The model's configuration, in the form that transformers reads."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "bos_token_id": end_id,
        "eos_token_id": end_id,
    }


def shapes() -> dict[str, tuple[int, ...]]:
    """Each weight's shape by its name in a Qwen2 checkpoint, in the order of the layers."""
    head = HIDDEN // HEADS
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, rows in (("q", HEADS * head), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
            found[f"{at}.self_attn.{name}_proj.weight"] = (rows, HIDDEN)
            found[f"{at}.self_attn.{name}_proj.bias"] = (rows,)
        found[f"{at}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * head)
        found[f"{at}.mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        found[f"{at}.mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        found[f"{at}.mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
        found[f"{at}.input_layernorm.weight"] = (HIDDEN,)
        found[f"{at}.post_attention_layernorm.weight"] = (HIDDEN,)
    found["model.norm.weight"] = (HIDDEN,)
    found["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return found


def write_tokenizer(folder: Path) -> tuple[int, list[int]]:
    """Train the tokenizer and write it.

    Returns:
        The id of the end-of-text token, and the ids that decode to plain text.
    """
    from tokenizers import (  # type: ignore[import-not-found]
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END,
            "eos_token": END,
            "pad_token": END,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )
    readable = [
        token
        for token in range(tokenizer.get_vocab_size())
        if (text := tokenizer.decode([token])) and text.isascii()
    ]
    return int(tokenizer.token_to_id(END)), readable


def write_weights(folder: Path, readable: list[int]) -> None:
    """Seeded normal weights (norms: ones), in shards of consecutive layers with their index.

    The head's other rows are nothing: of hundreds of readable tokens one is always likelier.
    """
    import torch  # type: ignore[import-not-found]
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    source = torch.Generator().manual_seed(SEED)
    weights: dict[str, Any] = {}
    for name, shape in shapes().items():
        if "norm" in name:
            value = torch.ones(shape)
        else:
            value = torch.randn(shape, generator=source) * 0.02
        if name == "lm_head.weight":
            head = torch.zeros(shape)
            head[readable] = value[readable]
            value = head
        weights[name] = value.to(torch.bfloat16)

    placed: dict[str, str] = {}
    for number, names in enumerate(split(weights), start=1):
        file = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        save_file({name: weights[name] for name in names}, folder / file, {"format": "pt"})
        placed.update(dict.fromkeys(names, file))
    total = sum(value.numel() * value.element_size() for value in weights.values())
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": placed},
    )


def split(weights: Mapping[str, object]) -> list[list[str]]:
    """The names in ``SHARDS`` runs of nearly equal length."""
    names = list(weights)
    size = -(-len(names) // SHARDS)
    return [names[start : start + size] for start in range(0, len(names), size)]


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
