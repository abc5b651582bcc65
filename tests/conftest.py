"""For all tests: one thread (small tensors gain nothing from two, and sums keep one order), and a fixed seed."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
