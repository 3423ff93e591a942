"""Fixed prompts asked of a server, for telling whether it still computes what it should."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

from . import procs, readiness
from .refusal import Refused

_MOST_BYTES = 4 * 1024 * 1024


def ask(
    run: str,
    address: str,
    port: int,
    prompts: list[str],
    max_new_tokens: int,
    repetitions: int,
    questions: list[str],
    question_tokens: int,
    timeout_s: float,
    pause: Callable[[float], bool],
) -> Iterator[dict[str, Any]]:
    """Ask at temperature 0, one prompt at a time; the prefix cache is emptied before each round.

    Messages: ``{"done", "of"}`` after each answer, then
    ``{"repetitions": [[{"text", "tokens", "logprobs"}, …], …], "said": [text, …]}``, the log
    probabilities those of the output tokens.

    Raises:
        Refused: ToolError; the port isn't the run's, or a generation is not answered.
    """
    key = _key(run, port)
    of, done = repetitions * len(prompts) + len(questions), 0
    rounds: list[list[dict[str, Any]]] = []
    for _ in range(repetitions):
        _asked(address, port, key, "/flush_cache", {}, timeout_s)
        answers: list[dict[str, Any]] = []
        rounds.append(answers)
        for prompt in prompts:
            if pause(0):
                return
            answers.append(_generation(address, port, key, prompt, max_new_tokens, timeout_s))
            done += 1
            yield {"done": done, "of": of}
    said = []
    for question in questions:
        if pause(0):
            return
        answer = _generation(address, port, key, question, question_tokens, timeout_s)
        said.append(answer["text"])
        done += 1
        yield {"done": done, "of": of}
    yield {"repetitions": rounds, "said": said}


def _key(run: str, port: int) -> str | None:
    _, holders = procs.listeners(port)
    if not holders or any(procs.run_of(pid) != run for pid in holders):
        raise Refused("ToolError", f"port {port} is not held by run {run}")
    return readiness.api_key(holders)


def _generation(
    address: str, port: int, key: str | None, prompt: str, max_new_tokens: int, timeout_s: float
) -> dict[str, Any]:
    body = {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens},
        "return_logprob": True,
        "logprob_start_len": -1,
    }
    answer = _asked(address, port, key, "/generate", body, timeout_s)
    try:
        reply = json.loads(answer)
        pairs = reply["meta_info"]["output_token_logprobs"]
        return {
            "text": str(reply["text"]),
            "tokens": [int(pair[1]) for pair in pairs],
            # NaN, which is no JSON, becomes null: outputs that are broken may well have it.
            "logprobs": [_number(pair[0]) for pair in pairs],
        }
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Refused(
            "ToolError", "/generate answers no generation with log probabilities", [answer[:300]]
        ) from error


def _number(value: object) -> float | None:
    number = float(value) if isinstance(value, (int, float)) else float("nan")
    return number if abs(number) < float("inf") else None


def _asked(
    address: str, port: int, key: str | None, path: str, body: dict[str, Any], timeout_s: float
) -> str:
    try:
        status, answer = readiness.ask(
            address, port, "POST", path, body, timeout_s, key, _MOST_BYTES
        )
    except (OSError, http.client.HTTPException) as error:
        raise Refused(
            "ToolError", f"{path} is not answered: {type(error).__name__}: {error}"
        ) from error
    if status != 200:
        raise Refused("ToolError", f"{path} answers {status}", [answer[:300]])
    return answer
