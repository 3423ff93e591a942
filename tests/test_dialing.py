"""The early dial: what it may do beside the imports, and what it leaves for later."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

EARLY = """
import socket, sys, threading
from pathlib import Path
from remote import dialing
from remote.config import Address

entry = {"address": "root@lab", "venv": "/v", "model": "/m", "port": 1, "ssh_config": sys.argv[1]}
dialing.begin({"hosts": {"gpu": entry}}, Path(sys.argv[2]), "gpu")
assert dialing._begun
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print("paramiko" in sys.modules)
dial = dialing.taken(Address.parse("root@lab"), sys.argv[1], 5.0)
made = dial.connection()
print(dial.options().port == made.getpeername()[1])
"""


def test_paramiko_is_not_imported_beside_the_imports(tmp_path: Path) -> None:
    """Two threads that begin to import one package at once may both get a broken one."""
    config = tmp_path / "ssh_config"
    without = {**os.environ, "PATH": str(tmp_path / "nothing-here")}
    for environment in (os.environ, without):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            config.write_text(f"Host lab\n  HostName 127.0.0.1\n  Port {port}\n")
            config.chmod(0o600)
            threading.Thread(target=server.accept, daemon=True).start()
            done = subprocess.run(
                [sys.executable, "-c", EARLY, str(config), str(tmp_path)],
                env=environment,
                cwd=Path(__file__).parents[1],
                capture_output=True,
                text=True,
                timeout=60,
            )
        assert done.stdout.split() == ["False", "True"], done.stderr
