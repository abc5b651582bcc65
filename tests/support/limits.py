"""Less memory than a hostile file may ask for."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPARE = 1 << 31
SIZE = Path("/proc/self/statm")  # only Linux has it


@contextmanager
def little_memory() -> Iterator[None]:
    """Whatever asks for two gigabytes more than this process has fails at once, instead of filling the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if SIZE.exists():
        size = int(SIZE.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + SPARE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
