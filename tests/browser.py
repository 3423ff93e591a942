"""A headless Chromium, driven through the pipe of its DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_ANSWER_S = 90.0


class Browser:
    """One browser with one page.

    ``requests`` holds every address that the page asked for, ``faults`` what it reported: errors
    of scripts, refused resources, lines in the console.
    """

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM, "these tests need Chromium: sudo apt-get install chromium"
        to_browser, our_end = os.pipe()
        their_end, from_browser = os.pipe()
        # The browser reads from descriptor 3 and writes to 4: pipes elsewhere can't be in the way.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_browser, from_browser)]
        options = [
            *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
            *("--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={profile}"),
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "-", CHROMIUM, *options],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for fd in (to_browser, from_browser, *high):
            os.close(fd)
        self._out, self._in = our_end, their_end
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._seen: list[str] = []
        self.requests: list[str] = []
        self.faults: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What the browser answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path) -> None:
        """Load a file, to the end."""
        self._seen.clear()
        self.call("Page.navigate", url=page.as_uri())
        while "Page.loadEventFired" not in self._seen:
            self._next()

    def media(self, scheme: str, kind: str = "screen") -> None:
        """Show the page as in ``light`` or ``dark``, on ``screen`` or in ``print``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def width(self, pixels: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=pixels,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def value(self, expression: str) -> Any:
        """What a line of JavaScript comes to."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _ANSWER_S
        while b"\0" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._in], [], [], left)
            chunk = os.read(self._in, 65536) if ready else b""
            assert chunk, "the browser does not answer"
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        self._seen.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.faults.append(params["exceptionDetails"]["text"])
        elif method == "Log.entryAdded":
            self.faults.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.faults.append(str(params["args"]))
