"""A real browser for tests: headless Chromium driven over its debugging pipe, with nothing but the standard library.

with Browser() as browser:
    browser.open(path, width=390)
    assert browser.evaluate("document.title") == "..."
    assert not browser.problems
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--mute-audio",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
CONNECT = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # the browser reads from 3 and writes to 4
PATIENCE = 60.0  # seconds for one answer


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome; CITRUS_CHROMIUM names another."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("CITRUS_CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One tab; `problems` collects console errors, exceptions, and requests for anything but file: and data:."""

    def __init__(self) -> None:
        chromium = find_chromium()
        assert chromium, "no Chromium"
        self.profile = tempfile.mkdtemp(prefix="citrus-browser-")
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        command = [sys.executable, "-c", CONNECT, str(read), str(write), chromium, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        os.set_blocking(self._read, False)
        self._buffer, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for end in (self._read, self._write):
            os.close(end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file and wait until it is loaded."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + PATIENCE
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive(until)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key, such as ("Tab", 9)."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        taken = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self, until: float) -> dict[str, Any]:
        """The next message; events are kept, and those that tell of a problem are noted."""
        while b"\0" not in self._buffer:
            assert time.monotonic() < until, "Chromium does not answer"
            assert self._process.poll() is None, "Chromium ended"
            with contextlib.suppress(BlockingIOError):
                self._buffer += os.read(self._read, 1 << 16)
            time.sleep(0.002)
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
            self._note(message["method"], message["params"])
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent" and not event["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(f"request: {event['request']['url']}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {event['exceptionDetails']}")
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {event['entry']['text']}")
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console: {event['args']}")
