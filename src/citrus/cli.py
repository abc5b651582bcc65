"""The `citrus` command: a thin shell over the library. Torch is only loaded once a command needs it."""

import importlib
import os
import sys

from citrus import __version__
from citrus.errors import CitrusError, suggest

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
    """Run one command; returns the exit code: 0 done, 1 user error, 130 interrupted with its state kept."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    command, *rest = [word for word in words if word != "--debug"] or ["--help"]
    if command in ("--help", "-h", "help", "--version"):
        print(__version__ if command == "--version" else HELP)
        return 0
    try:
        if command not in COMMANDS:
            raise CitrusError(f"Unknown command {command!r}: {suggest(command, COMMANDS)}")
        return int(importlib.import_module(f"citrus.commands.{command}").run(rest) or 0)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CitrusError, OSError) as error:
        if debug:
            raise
        print(f"{RED}error:{PLAIN}" if sys.stderr.isatty() else "error:", _sentence(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except SystemExit as stop:  # the flag parser's own exits: 0 after --help, else a mistake of the user's
        return 1 if stop.code else 0


def _sentence(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}."
