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
    "bench": "compare all methods with the same budget, or make the tables of the paper",
}

HELP = f"""citrus {__version__}: networks that are provably robust against universal perturbations

usage: citrus COMMAND [ARGUMENTS]

{chr(10).join(f"  {name:10}{text}" for name, text in COMMANDS.items())}

  citrus COMMAND --help   what a command takes
  citrus --version        the version
  --debug                 show the whole traceback of an error

start here: citrus train quickstart"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 user error, 130 interrupted with its state kept."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [w for w in words if w != "--debug"]
    if not words or words[0] in ("--help", "-h", "help"):
        print(HELP)
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    try:
        if words[0] not in COMMANDS:
            raise CitrusError(f"Unknown command {words[0]!r}: {suggest(words[0], COMMANDS)}")
        module = importlib.import_module(f"citrus.commands.{words[0]}")
        return int(module.run(words[1:]) or 0)
    except CitrusError as error:
        if debug:
            raise
        return _fail(str(error))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug:
            raise
        return _fail(f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}.")
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except SystemExit as stop:  # the flag parser's own exits: 0 after --help, else a mistake of the user's
        return 1 if stop.code else 0


def _fail(message: str) -> int:
    colour = sys.stderr.isatty()
    print(f"\033[31merror:\033[0m {message}" if colour else f"error: {message}", file=sys.stderr)
    return 1
