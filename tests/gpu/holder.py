"""Listens on a loopback port for a while: ``python - PORT SECONDS`` on the host, left behind.

Prints its pid once it listens; ends by itself.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

door = socket.create_server(("127.0.0.1", int(sys.argv[1])))
child = os.fork()
if child:
    print(child)
    sys.stdout.flush()
    os._exit(0)
os.setsid()
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(null, stream)
signal.alarm(int(float(sys.argv[2])))
signal.pause()  # what connects waits in the backlog
