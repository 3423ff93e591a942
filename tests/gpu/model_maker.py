"""Makes the test's models: ``python - FOLDER NAME=SHAPE …`` in the host's venv.

Each is a folder with a Qwen2 ``config.json`` and a tokenizer, for ``--load-format dummy``. SHAPE is
layers, hidden, intermediate, heads, KV heads and vocabulary, by commas. The tokenizer is trained on
Python's own library, ASCII alone: whatever token a model of noise answers, it is text to read.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from pathlib import Path

END = "<|endoftext|>"
CONTEXT = 8192


def texts() -> list[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(library.glob("*.py"))[:120]:
        text = path.read_text("utf-8", "ignore").encode("ascii", "ignore").decode()
        found.append(re.sub(r"[^!-~\n]+", " ", text))
    return found


def tokenizer(folder: Path, vocabulary: int) -> int:
    """Train and write it; the size of its vocabulary."""
    from tokenizers import (  # type: ignore[import-not-found]
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], show_progress=False, min_frequency=2
    )
    made.train_from_iterator(texts(), trainer)
    made.save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": "{% for m in messages %}{{ m['content'] + '\\n' }}{% endfor %}",
        },
    )
    return int(made.get_vocab_size())


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", "utf-8")


def main() -> None:
    root = Path.home() / sys.argv[1]
    told = {"root": str(root)}
    for word in sys.argv[2:]:
        name, _, numbers = word.partition("=")
        layers, hidden, intermediate, heads, kv_heads, vocabulary = map(int, numbers.split(","))
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        size = tokenizer(folder, vocabulary)
        write(
            folder / "config.json",
            {
                "architectures": ["Qwen2ForCausalLM"],
                "model_type": "qwen2",
                "hidden_size": hidden,
                "intermediate_size": intermediate,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "vocab_size": size,
                "max_position_embeddings": CONTEXT,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-6,
                "rope_theta": 10000.0,
                "tie_word_embeddings": False,
                "use_sliding_window": False,
                "torch_dtype": "bfloat16",
                "bos_token_id": 0,
                "eos_token_id": 0,
            },
        )
        told[name] = f"{layers} layers, hidden {hidden}, vocabulary {size}"
    print(json.dumps(told))


main()
