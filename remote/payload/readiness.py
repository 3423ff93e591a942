"""Is the server that answers the one just launched, and does it generate?"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from . import procs, ranks

#: SGLang's config file in a run's folder, in JSON as this tool writes it.
_SECRETS = "secrets.yaml"


def check(run: str, address: str, port: int, timeout_s: float) -> dict[str, Any]:
    """One look: the port's owner, /health, and a real generation of a few tokens.

    A server that wants an API key gets the one it was started with.

    Returns:
        ``{"ok": True, "text": ..., "ranks": {name: pid}}``, or ``{"ok": False, "why": ...}``;
        with ``"final": True`` where asking again would bring the same.
    """
    taken, holders = procs.listeners(port)
    if not taken:
        return {"ok": False, "why": f"nothing listens on port {port}"}
    strangers = [pid for pid in holders if procs.run_of(pid) != run]
    if strangers or not holders:
        return {
            "ok": False,
            "why": f"port {port} is held by another process than this run's",
            "stranger": procs.describe(strangers[0]) if strangers else None,
        }
    import http.client  # with what it needs it takes longer to import than all the rest

    key = api_key(holders)
    try:
        status, _ = ask(address, port, "GET", "/health", None, timeout_s, key)
        if status != 200:
            return {"ok": False, "why": f"/health answers {status}"}
        status, answer = ask(
            address,
            port,
            "POST",
            "/generate",
            {"text": "1 2 3", "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
            timeout_s,
            key,
        )
    except (OSError, http.client.HTTPException) as error:
        return {"ok": False, "why": f"{type(error).__name__}: {error}"}
    if status != 200:
        refused = status in (401, 403)
        why = f"/generate answers {status}{', the API key is not taken' if refused else ''}"
        return {"ok": False, "why": why, "body": answer[:500], "final": refused}
    try:
        reply = json.loads(answer)
        tokens = int(reply["meta_info"]["completion_tokens"])
    except (ValueError, KeyError, TypeError):
        return {"ok": False, "why": "/generate answers no generation", "body": answer[:500]}
    if tokens < 1:
        return {"ok": False, "why": "/generate made no token", "body": answer[:500]}
    named = ranks.roster(procs.members(run), holders[0])
    return {
        "ok": True,
        "text": str(reply.get("text", "")),
        "tokens": tokens,
        "ranks": {name: process.pid for name, process in named.items()},
    }


def api_key(pids: list[int]) -> str | None:
    """The server's ``--api-key``, from its command line or the file of secrets named there."""
    for pid in pids:
        words = procs.command_line(pid)
        # A process that is just ending has no words any more.
        told = dict(zip(words, [*words[1:], ""], strict=False))
        for word in words:
            name, equals, value = word.partition("=")
            if equals and name.startswith("--"):
                told[name] = value
        if "--api-key" in told:
            return told["--api-key"]
        kept = told.get("--config", "")
        if os.path.basename(kept) == _SECRETS:
            with contextlib.suppress(OSError, ValueError):
                with open(kept, encoding="utf-8") as file:
                    key = json.load(file).get("api-key")
                return None if key is None else str(key)
    return None


def ask(
    address: str,
    port: int,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    timeout_s: float,
    key: str | None = None,
    most_bytes: int = 65536,
) -> tuple[int, str]:
    """One request to the server: the status, and the answer as far as it may be read.

    Raises:
        OSError, http.client.HTTPException: it was not answered.
    """
    import http.client

    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        payload = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        return response.status, response.read(most_bytes).decode("utf-8", "replace")
    finally:
        connection.close()
