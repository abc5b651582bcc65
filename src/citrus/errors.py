"""The one exception that says a user gave Citrus something it cannot use."""

import difflib
from collections.abc import Iterable


class CitrusError(ValueError):
    """A mistake in what the user gave. Its message is one sentence: what is wrong, where, and what to do.

    The command line prints the message and exits with code 1.
    """


class SoundnessError(RuntimeError):
    """An attack broke something certified: a bug in Citrus that stops the run. Please report it with its message."""


def suggest(word: str, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known name, or all of them when nothing is near."""
    known = list(known)
    begun = [name for name in known if word and name.startswith(word)]
    near = [min(begun, key=len)] if begun else difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(sorted(known)) + "."
