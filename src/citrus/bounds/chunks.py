"""Work on (image, row) pairs in chunks that fit a memory budget, which halves itself when memory runs out."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from citrus.errors import CitrusError, memory_ran_out

CPU_BYTES = 64 * 2**20
"""Small chunks stay near the caches: larger ones were slower on every CPU we tried."""


def free_memory(device: torch.device) -> int:
    """Bytes that may still be taken on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system says
        return 4 * 2**30


Work = Callable[[slice, slice], tuple[Tensor, ...]]
T = TypeVar("T")
R = TypeVar("R")


@dataclass
class MemoryLimit:
    """Bytes that one chunk may hold. Shared by all passes of a bound, so that what was learnt is kept."""

    bytes: int

    @staticmethod
    def of(memory: int | None, device: torch.device) -> "MemoryLimit":
        """`memory` bytes, or by default what suits the device: a quarter of a GPU's free memory."""
        if memory is None:
            memory = free_memory(device) // 4 if device.type == "cuda" else CPU_BYTES
        if memory <= 0:
            raise CitrusError(f"The memory budget must be a positive number of bytes, got {memory}.")
        return MemoryLimit(memory)


def in_chunks(size: tuple[int, int], row_bytes: int, budget: MemoryLimit, work: Work) -> tuple[Tensor, ...]:
    """work(images, rows) for all pairs of `size` = (images, rows), results joined; either may be cut."""

    def run(images: slice, lines: slice) -> tuple[Tensor, ...]:
        many, long = images.stop - images.start, lines.stop - lines.start
        results = _attempt(many * long, row_bytes, budget, lambda: work(images, lines))
        if results is not None:
            return results
        if many > 1:
            parts = [run(half, lines) for half in _halves(images)]
        else:
            parts = [run(images, half) for half in _halves(lines)]
        axis = 0 if many > 1 else 1
        return tuple(torch.cat(pair, axis) for pair in zip(*parts, strict=True))

    return run(slice(0, size[0]), slice(0, size[1]))


def map_in_chunks(
    items: Sequence[T], item_bytes: int, budget: MemoryLimit, work: Callable[[Sequence[T]], list[R]]
) -> list[R]:
    """work(some of the items) for all of them, as many at a time as fit; the results in the order of the items."""
    if not items:
        return []
    results = _attempt(len(items), item_bytes, budget, lambda: work(items))
    if results is not None:
        return results
    return [
        result
        for half in _halves(slice(0, len(items)))
        for result in map_in_chunks(items[half], item_bytes, budget, work)
    ]


def _halves(whole: slice) -> tuple[slice, slice]:
    middle = (whole.start + whole.stop) // 2
    return slice(whole.start, middle), slice(middle, whole.stop)


def _attempt(count: int, each: int, budget: MemoryLimit, work: Callable[[], R]) -> R | None:
    """The result; None where it has to be tried in halves, because the budget does not hold it or memory ran out.

    When memory ran out the exception must be gone before a retry, because it holds the tensors.
    """
    if count * each > budget.bytes and count > 1:
        return None
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not memory_ran_out(error):
            raise
    torch.cuda.empty_cache()
    if count <= 1:
        raise CitrusError("Memory ran out for a single row of a single image: use intermediate='interval'.")
    budget.bytes = max(count * each // 2, 1)
    return None
