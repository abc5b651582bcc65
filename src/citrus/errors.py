"""The one exception that says a user gave Citrus something it cannot use, and how to tell others apart."""

import difflib
from collections.abc import Iterable


class CitrusError(ValueError):
    """A mistake in what the user gave. Its message is one sentence: what is wrong, where, and what to do.

    The command line prints the message and exits with code 1.
    """


class CannotWrite(CitrusError):
    """A disk is full, or a folder may not be written: nothing that follows can be kept."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def code_of(stop: KeyboardInterrupt) -> int:
    """The exit code of a command that was interrupted: 128 and the number of the signal."""
    return 143 if isinstance(stop, Terminated) else 130


MEMORY_WORDS = ("allocate memory", "not enough memory", "out of memory", "bad_alloc", "ALLOC_FAILED")


def memory_ran_out(error: BaseException) -> bool:
    """In Python, on the GPU, or in the CPU's allocator or a library, which have no exception of their own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in MEMORY_WORDS)


def suggest(word: str, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known name, or all of them when nothing is near."""
    known = list(known)
    begun = [name for name in known if word and name.startswith(word)]
    near = [min(begun, key=len)] if begun else difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(sorted(known)) + "."
