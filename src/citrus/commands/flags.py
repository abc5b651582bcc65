"""Flags of a command from a dataclass (by tyro), with mistakes told in one sentence."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from citrus.errors import CitrusError, suggest

T = TypeVar("T")


def parse_flags(kind: type[T], command: str, arguments: list[str], extra: Sequence[str] = ()) -> tuple[T, list[str]]:
    """The flags of `kind` among the arguments, and the rest, whose names must be in `extra`."""
    import tyro

    names = [*(f.name for f in dataclasses.fields(kind)), *extra]  # type: ignore[arg-type]
    known = ["--" + name.replace("_", "-") for name in names]
    for flag in (word.split("=")[0] for word in arguments if word.startswith("--")):
        if flag.replace("_", "-") not in ["--help", *known]:
            raise CitrusError(f"Unknown flag {flag} of `citrus {command}`: {suggest(flag, known)}")
    result, rest = tyro.cli(kind, prog=f"citrus {command}", args=arguments, return_unknown_args=True)
    if rest and not extra:
        raise CitrusError(f"`citrus {command}` does not understand {' '.join(rest)!r}; see `citrus {command} --help`.")
    return result, rest


def pairs(words: list[str]) -> dict[str, str]:
    """`--name value`, `--name=value` and `--name several values` (joined by commas) as a dictionary."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif not name:
            raise CitrusError(f"Expected a flag such as --epochs before {word!r}.")
        else:
            found[name].append(word)
    for name, values in found.items():
        if not values:
            raise CitrusError(f"--{name} needs a value.")
    return {name: ",".join(values) for name, values in found.items()}


def take_word(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The leading word that is no flag, if there is one, and the rest."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments
