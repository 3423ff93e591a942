"""The embedded SSH server over a home of the test's own: ``python embedded.py FOLDER``.

Run by an interpreter that has the tool's packages. Makes keys where there are none, starts the
server unless it runs, and prints the host's entry as one line of JSON.
"""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from remote.sandbox.control import start_server
from remote.sandbox.entry import CPU_ENV, CPU_FLAGS, UNAVAILABLE
from remote.sandbox.keys import make_keys
from remote.sandbox.layout import Layout
from remote.sandbox.record import LOOPBACK, ServerRecord


def main() -> None:
    layout = Layout(Path(sys.argv[1]))
    layout.home.mkdir(parents=True, exist_ok=True)
    make_keys(layout)
    record = ServerRecord.read(layout.server_record)
    running = record is not None and record.process.alive
    port = record.port if record is not None and running else start_server(layout)
    entry: dict[str, object] = {
        "address": f"{getpass.getuser()}@{LOOPBACK}:{port}",
        "identity_file": str(layout.client_key),
        "known_hosts": str(layout.known_hosts),
        "ssh_config": "none",
        "venv": str(layout.venv),
    }
    if "--cpu" in sys.argv:
        entry |= {"flags": CPU_FLAGS, "env": CPU_ENV, "unavailable": UNAVAILABLE}
    print(json.dumps(entry))


main()
