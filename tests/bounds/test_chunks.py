"""Work in chunks: everything is done once and in order, whatever memory allows."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from citrus.bounds.chunks import MemoryLimit, in_chunks, map_in_chunks
from citrus.errors import CitrusError

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError("no room"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: 99 bytes"),
    RuntimeError("std::bad_alloc"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["cuda", "python", "cpu", "library"])
def test_a_chunk_that_does_not_fit_is_halved(error: Exception) -> None:
    sizes = []

    def work(images: slice, rows: slice) -> tuple[Tensor, ...]:
        pairs = torch.cartesian_prod(torch.arange(6)[images], torch.arange(5)[rows])
        sizes.append(len(pairs))
        if len(pairs) > 4:
            raise error
        return (pairs.view(images.stop - images.start, rows.stop - rows.start, 2),)

    budget = MemoryLimit(10**6)
    (result,) = in_chunks((6, 5), 8, budget, work)
    assert torch.equal(result.flatten(0, 1), torch.cartesian_prod(torch.arange(6), torch.arange(5)))
    assert sizes[0] == 30
    assert budget.bytes < 10**6


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["cuda", "python", "cpu", "library"])
def test_items_come_back_in_order(error: Exception) -> None:
    sizes = []

    def work(items: Sequence[int]) -> list[str]:
        sizes.append(len(items))
        if len(items) > 3:
            raise error
        return [str(item) for item in items]

    assert map_in_chunks(range(11), 8, MemoryLimit(10**6), work) == [str(item) for item in range(11)]
    assert sizes[0] == 11
    assert map_in_chunks([], 8, MemoryLimit(1), work) == []
    sizes.clear()
    assert map_in_chunks(range(5), 8, MemoryLimit(16), work) == [str(item) for item in range(5)]
    assert max(sizes) == 2


def test_what_does_not_fit_alone_is_said_and_other_errors_are_passed_on() -> None:
    def full(*_: object) -> list[int]:
        raise MemoryError

    def broken(*_: object) -> list[int]:
        raise RuntimeError("shapes do not match")

    with pytest.raises(CitrusError, match="Memory ran out"):
        map_in_chunks(range(4), 8, MemoryLimit(100), full)
    with pytest.raises(RuntimeError, match="shapes"):
        map_in_chunks(range(4), 8, MemoryLimit(100), broken)
