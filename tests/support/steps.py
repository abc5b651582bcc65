"""Training in small: networks, data, batches as the loop hands them to a method, and a record of bounded boxes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import citrus.methods.base as base
from citrus.attacks import Ascent
from citrus.bounds import Bounds
from citrus.data import Dataset, DatasetInfo, Splits
from citrus.methods import Batch
from citrus.networks import Normalize, Trace, fold, trace

EPS = 0.1
SHAPE = (2, 5, 5)
CLASSES = 4
STD = (0.3, 0.2)
FEW_STEPS = Ascent(steps=2, step_size=0.5)
TINY_STD = (0.2, 0.4, 0.5)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only wait for a second thread. Import it to use it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_network(batch_norm: bool = True, dtype: torch.dtype = torch.float64) -> tuple[nn.Sequential, Trace]:
    """Two hidden layers; BatchNorm with weights of both signs."""
    norms = (nn.BatchNorm2d(4), nn.BatchNorm1d(6)) if batch_norm else ()
    layers: list[nn.Module] = [Normalize((0.4, 0.5), STD), nn.Conv2d(2, 4, 3, 2, padding=1), *norms[:1]]
    layers += [nn.ReLU(), nn.Flatten(), nn.Linear(36, 6), *norms[1:], nn.ReLU(), nn.Linear(6, CLASSES)]
    network = nn.Sequential(*layers).train()
    traced = trace(network, SHAPE)
    network.to(dtype)
    with torch.no_grad():
        for i, parameter in enumerate(network.parameters()):
            parameter.copy_(random(*parameter.shape, seed=100 + i) * 2 - 1)
    return network, traced


def make_batch(traced: Trace, count: int = 6, clip: bool = False, eps: float = EPS, seed: int = 0) -> Batch:
    """A step with the network's batch statistics, on random images of which some pixels are 0 and some 1."""
    dtype = next(p.dtype for traced_layer in traced.layers for p in traced_layer.layer.parameters())
    images = (1.4 * random(count, *SHAPE) - 0.2).clamp(0, 1).to(dtype)
    labels = (random(count, seed=1) * CLASSES).long()
    logits, statistics = traced.forward_with_statistics(images)
    generator = torch.Generator().manual_seed(seed)
    return Batch(images, labels, F.cross_entropy(logits, labels), fold(traced, statistics), eps, clip, generator)


def tiny_splits(count: int) -> Splits:
    """Random colour images of 12x12 pixels in three classes, none held out."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (count, 3, 12, 12), generator=generator, dtype=torch.uint8)
    data = Dataset("tiny", images, torch.arange(count) % 3, ("a", "b", "c"))
    return Splits(data, data.subset([]), data, DatasetInfo("tiny", (3, 12, 12), 3, (0.4, 0.5, 0.6), TINY_STD))


def gradients(network: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(network.parameters()), retain_graph=True, materialize_grads=True))


class BoxSpy:
    """Records every box that is bounded, after clipping: its lower and upper corner, what was asked and answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lower: list[Tensor] = []
        self.upper: list[Tensor] = []
        self.asked: list[tuple[Tensor, Tensor]] = []
        interval = base.training_interval

        def spy(graph: object, centre: Tensor, radius: Tensor | float, spec: Tensor, *rest: Any) -> Bounds:
            bounds = interval(graph, centre, radius, spec, *rest)  # type: ignore[arg-type]
            self.lower.append((centre - radius).detach())
            self.upper.append((centre + radius).detach())
            self.asked.append((spec, bounds.lower.detach()))
            return bounds

        monkeypatch.setattr(base, "training_interval", spy)
