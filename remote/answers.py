"""What a server says to fixed prompts, kept beside its run: the ground for «output differs»."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remote.config import HostSettings
from remote.core.quality import Question
from remote.host import Host

#: Prose, code, numbers, lists, another language, a long one: each kind of output that a wrong
#: scale or a broken reduction spoils first somewhere else.
PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    "The first ten prime numbers are 2, 3, 5,",
    "Q: What is 17 times 23?\nA:",
    "Once upon a time, in a village by the sea, there lived",
    "Die Hauptstadt von Deutschland heißt",
    '{"name": "Ada", "born": 1815, "field":',
    "Translate to French: The weather is nice today.\nFrench:",
    # Long enough to be prefilled in more than one block of the attention kernels.
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. " * 40 + "Monday,",
)
MAX_NEW_TOKENS = 32
REPETITIONS = 3
_QUESTION_TOKENS = 64
_ANSWER_S = 60.0


def ask(
    host: Host,
    settings: HostSettings,
    run: str,
    address: str,
    questions: Sequence[Question],
    tell: Callable[[int, int], object],
) -> dict[str, Any]:
    """The run's answers, in the shape of its quality.json.

    Args:
        address: where the server answers on its own host.
        tell: told how many of how many generations are done.

    Raises:
        ToolError: the server doesn't answer.
    """
    found: dict[str, Any] = {}
    with host.stream(
        "quality.ask",
        run=run,
        address=address,
        port=settings.port,
        prompts=list(PROMPTS),
        max_new_tokens=MAX_NEW_TOKENS,
        repetitions=REPETITIONS,
        questions=[f"Q: {each.question}\nA:" for each in questions],
        question_tokens=_QUESTION_TOKENS,
        timeout_s=_ANSWER_S,
    ) as messages:
        for message in messages:
            if "repetitions" in message.body:
                found = dict(message.body)
            else:
                tell(int(message.body["done"]), int(message.body["of"]))
    return {
        "run": run,
        "prompts": list(PROMPTS),
        "repetitions": found["repetitions"],
        "questions": [
            {"question": each.question, "answer": each.answer, "said": said}
            for each, said in zip(questions, found["said"], strict=True)
        ],
    }
