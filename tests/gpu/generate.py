"""Asks the server on the host for some tokens: ``python - PORT`` there; prints them as JSON."""

from __future__ import annotations

import json
import sys
import urllib.request

told = []
for text in ("def main():", "import json", "The server", "1 2 3 4"):
    body = {"text": text, "sampling_params": {"max_new_tokens": 16, "temperature": 0}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{sys.argv[1]}/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        told.append(json.load(answer)["meta_info"]["completion_tokens"])
print(json.dumps(told))
