"""The `citrus` command: a thin shell over the library. Torch is only loaded once a command needs it."""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from citrus import __version__
from citrus.errors import CitrusError, Terminated, code_of, memory_ran_out, suggest

COMMANDS = {
    "train": "train a network by a recipe, evaluate it, and keep everything in a run folder",
    "certify": "prove how many images of each group survive every shared perturbation",
    "attack": "search universal perturbations that break a trained network",
    "check": "verify the proofs in certificates, without trusting whoever made them",
    "report": "write a page about one run, or several side by side, from their files",
    "export": "write a network as ONNX and a group's property as VNN-LIB",
    "data": "list, fetch and describe data sets",
    "bench": "many runs: every method, the tables of the paper, a plan of yours; rows as a table",
}

HELP = f"""citrus {__version__}: networks that are provably robust against universal perturbations

usage: citrus COMMAND [ARGUMENTS]

{chr(10).join(f"  {name:10}{text}" for name, text in COMMANDS.items())}

  citrus COMMAND --help   what a command takes
  citrus --version        the version
  --debug                 show the whole traceback of an error

start here: citrus train quickstart"""

RED, PLAIN = "\033[31m", "\033[0m"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 error, 130 after Ctrl-C and 143 after SIGTERM, state kept."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    command, *rest = [word for word in words if word != "--debug"] or ["--help"]
    if command in ("--help", "-h", "help", "--version"):
        print(__version__ if command == "--version" else HELP)
        return 0
    try:
        if command not in COMMANDS:
            raise CitrusError(f"Unknown command {command!r}: {suggest(command, COMMANDS)}")
        with _sigterm_interrupts():
            return int(importlib.import_module(f"citrus.commands.{command}").run(rest) or 0)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CitrusError, OSError, MemoryError, RuntimeError) as error:
        if debug or not (isinstance(error, CitrusError | OSError) or memory_ran_out(error)):
            raise
        print(f"{RED}error:{PLAIN}" if sys.stderr.isatty() else "error:", _sentence(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print("Interrupted; what was finished is kept.", file=sys.stderr)
        return code_of(stop)
    except SystemExit as stop:  # the flag parser's own exits: 0 after --help, else a mistake of the user's
        return 1 if stop.code else 0


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM is heard wherever Ctrl-C is."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _sentence(error: Exception) -> str:
    if memory_ran_out(error):
        return (
            "Memory ran out; what was finished is kept: free some memory or take fewer images at a time, and the same "
            "command goes on."
        )
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}."
