"""What a setting is where nobody says it; apart from the rest so that listing tasks stays fast."""

from __future__ import annotations

from collections.abc import Mapping

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 15.0
REDIAL_S = 60.0
CONCURRENCY = "1,10,256,1024"
INPUT_LEN = 1024
OUTPUT_LEN = 1024
REPEATS = 3
PROMPTS = 0  #: by the level
RUNS = "runs"
SANDBOX_FOLDER = ".sandbox"

#: Handed to Invoke, which reads the environment only for keys declared here or in the file.
#: It converts a variable to the type it finds and takes any word but ``0`` for true, so the
#: switches are text here: INVOKE_SSH_ACCEPT_NEW_HOST_KEYS=false must not mean yes. Lists can't
#: come from the environment at all: the matrix is text too.
DEFAULTS: Mapping[str, object] = {
    "host": "",
    "hosts": {},
    "templates": "",
    "runs": RUNS,
    "secrets": "",
    "sandbox": {"folder": SANDBOX_FOLDER},
    "ssh": {
        "connect_timeout_s": CONNECT_TIMEOUT_S,
        "accept_new_host_keys": "false",
        "fast_dial": "false",
        "keepalive_s": KEEPALIVE_S,
        "redial_s": REDIAL_S,
    },
    "bench": {
        "concurrency": CONCURRENCY,
        "input_len": INPUT_LEN,
        "output_len": OUTPUT_LEN,
        "repeats": REPEATS,
        "prompts": PROMPTS,
    },
}
