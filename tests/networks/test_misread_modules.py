"""Modules that are easily misread: the graph must equal the module, or the module must be refused."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.helpers import PIXELS, SHAPE, images
from torch import Tensor, nn

from citrus.errors import CitrusError
from citrus.networks import Normalize, graph


class InplaceRelu(nn.Module):
    """The shortcut reads a value after an in-place ReLU has changed it."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(PIXELS, 4), nn.Linear(4, 3)
        self.relu = (lambda x: F.relu(x, inplace=True)) if functional else nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return self.last(self.relu(x) + x)


class InplaceAdd(nn.Module):
    """`y += z` also changes `shortcut`, which is the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(PIXELS, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = shortcut = self.first(x.flatten(1))
        y += self.second(y)
        return self.last(y) + shortcut


class RareAdd(nn.Module):
    """`y += z` changes what the shortcut reads, but only for images that turn the ReLU on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(PIXELS, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = shortcut = self.first(x.flatten(1))
        y += F.relu(y)
        return self.last(y) + shortcut


class UnusedBranch(nn.Module):
    """Computes something it does not return, last of all but an Identity."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.other, self.keep = nn.Linear(PIXELS, 3), nn.Linear(PIXELS, 3), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        score = self.score(x)
        self.other(x)
        return self.keep(score)


class ViewOverwritten(nn.Module):
    """The shortcut reads a map whose flat view an in-place ReLU has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Conv2d(SHAPE[0], 2, 1), nn.ReLU(inplace=True), nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.relu(x.flatten(1)) + torch.flatten(x, 1))


def weighted(network: nn.Module, sign: float) -> nn.Module:
    """All first weights of one sign, so that a ReLU is always on or always off."""
    network(images(2))
    with torch.no_grad():
        network.first.weight.abs_().mul_(sign)
        network.first.bias.zero_()
    return network.eval()


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["always-on", "always-off"])
@pytest.mark.parametrize(
    "make", [lambda: InplaceRelu(False), lambda: InplaceRelu(True), InplaceAdd, RareAdd, ViewOverwritten], ids=range(5)
)
def test_value_that_is_read_after_a_change_in_place_is_refused(make: Callable[[], nn.Module], sign: float) -> None:
    """Whatever the weights are: where the ReLU is always on, no input would show the difference."""
    with pytest.raises(CitrusError, match="is read after a change in place"):
        graph(weighted(make(), sign), SHAPE)


class HarmlessInplace(nn.Module):
    """What residual networks do: sums and ReLUs in place on values that nobody reads again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(PIXELS, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x.flatten(1)), inplace=True)
        y = self.second(x)
        y += x
        x += F.relu(y, True)
        return self.last(x)


def test_harmless_change_in_place_is_right() -> None:
    network, x = HarmlessInplace().eval(), images(4)
    torch.testing.assert_close(graph(network, SHAPE)(x), network(x), rtol=1e-5, atol=1e-5)


def test_value_that_nobody_reads_is_refused() -> None:
    with pytest.raises(CitrusError, match="Nothing reads 'other'"):
        graph(UnusedBranch().eval(), SHAPE)


def test_normalisation_of_a_vector_is_refused() -> None:
    """Its mean has a place for rows and columns, so that numbers would be spread over a square."""
    network = nn.Sequential(nn.Flatten(), Normalize((0.5,) * PIXELS, (0.5,) * PIXELS), nn.Linear(PIXELS, 3)).eval()
    with pytest.raises(CitrusError, match="channels expected"):
        graph(network, SHAPE)
