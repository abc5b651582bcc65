"""A command of Citrus in a process of its own, which faults can be injected into.

Processes are forks of one that has loaded torch already, so that they start at once.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from citrus.cli import main

LIMIT = 120.0  # seconds that a command may take
ONE_AT_A_TIME = threading.Lock()  # two threads that ask how a process ended would take the answer from each other
SERVER = multiprocessing.get_context("forkserver")
LOADED = [__name__, *(f"citrus.commands.{name}" for name in ("bench", "certify", "check", "train"))]
LOADED += ["torch._dynamo", "tyro"]


class Child:
    """A command that runs; what it prints goes into `log`. `prepare` is called before it, in its process."""

    def __init__(self, words: list[str], log: Path, prepare: Callable[[], None] | None = None) -> None:
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        SERVER.set_forkserver_preload(LOADED)
        self.log, self.started = log, time.monotonic()
        self.process = SERVER.Process(target=_run, args=(words, str(log), prepare), daemon=True)
        with ONE_AT_A_TIME:
            self.process.start()

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid
        with suppress(ProcessLookupError):  # it is over
            os.kill(self.process.pid, number)

    def until(self, seconds: float, folder: Path | None = None, holds: str = "*") -> bool:
        """Wait until it has run so long and a folder holds such a file; whether it still runs then."""
        while self.alive and (self.seconds < seconds or (folder and not any(folder.rglob(holds)))):
            assert self.seconds < LIMIT, self.text
            time.sleep(0.005)
        return self.alive

    @property
    def alive(self) -> bool:
        with ONE_AT_A_TIME:
            return self.process.is_alive()

    def wait(self) -> int:
        """The exit code; minus the signal for a process that was killed."""
        end = time.monotonic() + LIMIT
        while self.alive:
            if time.monotonic() > end:
                self.process.kill()
                raise TimeoutError(self.text)
            time.sleep(0.005)
        assert self.process.exitcode is not None
        return self.process.exitcode

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def error(self) -> str:
        """What the command says is wrong, if it says so in a sentence and no traceback."""
        lines = [line for line in self.text.splitlines() if line.startswith("error: ")]
        return lines[-1] if lines and "Traceback" not in self.text else ""


def _run(words: list[str], log: str, prepare: Callable[[], None] | None) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # pictures take longer than all else
    if prepare:
        prepare()
    sys.exit(main(words))
