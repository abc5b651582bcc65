"""The layer zoo: one small network for every supported layer and for every way in which layers stand beside each other.

    @pytest.mark.parametrize("case", ZOO, ids=str)
    def test_something(case):
        network = case.build()

A new kind of layer, or a new rule that folds one into another, gets its row here; every bound is tested on all rows.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from citrus.networks import Graph, Normalize, graph

torch.set_num_threads(1)  # faster for networks as small as these

SHAPE = (2, 6, 6)
PIXELS = 72
CLASSES = 3


@dataclass(frozen=True)
class Case:
    """A network with what folding it must leave over."""

    name: str
    layers: Callable[[], list[nn.Module]]
    relus: int
    scales: int = 0
    """Diagonal maps that find no neighbour to be folded into."""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def build(self, dtype: torch.dtype = torch.float32, seed: int = 10) -> nn.Module:
        """The network in eval mode; BatchNorms have statistics and factors of either sign, as after training."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = self.layers()
            network = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
            for layer in network.modules():
                _as_after_training(layer)
        return network.to(dtype).eval()


@functools.cache
def folded(case: Case, dtype: torch.dtype = torch.float32) -> Graph:
    """The case's plain operations, without gradients: made once for all tests that only read them."""
    return graph(case.build(dtype), SHAPE).map(Tensor.detach)


def _as_after_training(layer: nn.Module) -> None:
    """Large weights keep deep networks alive: their ReLUs are on for some images and off for others."""
    with torch.no_grad():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.weight *= 2
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.normal_(0, 0.3)
            layer.running_var.uniform_(0.3, 2)
            if layer.affine:
                layer.weight.normal_()
                layer.bias.normal_(0, 0.5)


def images(count: int, dtype: torch.dtype = torch.float32, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Random images in [0, 1]."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def samples_in_box(centre: Tensor, radius: Tensor, count: int, seed: int = 0) -> Tensor:
    """Points (count, ...) of the box of one image: half of them corners, where affine layers reach their bounds."""
    generator = torch.Generator().manual_seed(seed)
    offsets = 2 * torch.rand(count, *centre.shape[1:], generator=generator, dtype=centre.dtype) - 1
    offsets[::2] = offsets[::2].sign()
    return centre + offsets * radius


class _Recorder(TorchFunctionMode):
    """Sees every ReLU that runs, written as a layer, a function or a method."""

    def __init__(self) -> None:
        super().__init__()
        self.entering: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.relu, torch.relu, Tensor.relu):
            self.entering.append(args[0].clone())
        return func(*args, **(kwargs or {}))


def run_with_pre_activations(network: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The module's own output and what enters each of its ReLUs, without any code of ours."""
    with torch.no_grad(), _Recorder() as recorder:
        output = network(x)
    return output, recorder.entering


def kinds(plain: Graph) -> list[str]:
    return [type(node.op).__name__ for node in plain.nodes]


def head(features: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, CLASSES)]


def after_relu(*layers: nn.Module) -> list[nn.Module]:
    """Layers between a ReLU and a padded convolution, on 3 channels of 6 x 6."""
    conv = nn.Conv2d(3, 2, 3, padding=1)
    return [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), *layers, conv, nn.ReLU(), *head(72)]


class Residual(nn.Module):
    """conv-BN-ReLU-conv-BN beside a 1x1 convolution with BN, as where a ResNet halves its image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(3)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(3)
        self.shortcut = nn.Sequential(nn.Conv2d(2, 3, 1, stride=2, bias=False), nn.BatchNorm2d(3))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + self.shortcut(x))


class IdentityShortcut(nn.Module):
    """The shortcut is the BatchNorm's own output: a value read twice, into which nothing may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, padding=1)
        self.bn = nn.BatchNorm2d(3)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1)
        self.keep = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv1(x))
        return F.relu(self.conv2(F.relu(y)) + self.keep(y))


class PreActivation(nn.Module):
    """x + conv(relu(bn(x))): the BatchNorm reads a value that the shortcut reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 3, padding=1)
        self.bn = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return x.add(self.conv(torch.relu(self.bn(x))))


class NormalizedTwice(nn.Module):
    """The normalised image is read by a padded convolution and by the shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = Normalize((0.4, 0.6), (0.25, 0.5))
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalize(x)
        x = self.conv(x).relu() + x
        return torch.flatten(x, 1)


class Doubled(nn.Module):
    """x + x, and an addition as the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(PIXELS, 4)
        self.left, self.right = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        x = (x + x).relu()
        return torch.add(self.left(x), self.right(x))


class SharedRelu(nn.Module):
    """One ReLU layer that runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.a, self.b, self.c = nn.Linear(PIXELS, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.a(torch.flatten(x, start_dim=1)))
        return self.c(self.relu(self.b(self.relu(x))))


def _conv(channels: int, features: int, **options: Any) -> Callable[[], list[nn.Module]]:
    return lambda: [nn.Conv2d(2, channels, **options), nn.ReLU(), *head(features)]


ZOO = (
    Case("linear", lambda: head(PIXELS), 0),
    Case(
        "mlp",
        lambda: [
            nn.Flatten(),
            nn.Linear(PIXELS, 5),
            nn.ReLU(),
            nn.Linear(5, 4, bias=False),
            nn.ReLU(),
            nn.Linear(4, 3),
        ],
        2,
    ),
    Case("conv", _conv(3, 48, kernel_size=3), 1),
    Case("conv stride padding", _conv(3, 27, kernel_size=3, stride=2, padding=1), 1),
    Case("conv groups", _conv(4, 64, kernel_size=3, groups=2), 1),
    Case("conv dilation", _conv(3, 48, kernel_size=3, dilation=2, padding=1, bias=False), 1),
    Case(
        "conv rectangular",
        _conv(3, 42, kernel_size=(2, 3), stride=(1, 2), padding=(2, 0), dilation=(3, 1)),
        1,
    ),
    Case("conv valid", _conv(3, 75, kernel_size=2, padding="valid"), 1),
    Case("conv to vector", lambda: [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 4), nn.Flatten()], 1),
    Case("ends in relu", lambda: [nn.Flatten(), nn.Linear(PIXELS, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU()], 2),
    Case(
        "bn after conv and linear",
        lambda: [
            *(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()),
            *(nn.Conv2d(3, 4, 3, 2, bias=False), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3, bias=False), nn.BatchNorm1d(3)),
        ],
        3,
    ),
    Case("bn after grouped conv", lambda: [nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ReLU(), *head(64)], 1),
    Case("bn first", lambda: [nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), *head(108)], 1),
    Case("bn first then relu", lambda: [nn.BatchNorm2d(2), nn.ReLU(), *head(72)], 1, scales=1),
    Case("bn after relu", lambda: after_relu(nn.BatchNorm2d(3)), 2),
    Case("bn before grouped conv", lambda: after_relu(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, 1, 1, groups=3)), 2),
    Case("bn twice", lambda: after_relu(nn.BatchNorm2d(3), nn.BatchNorm2d(3)), 2),
    Case("bn between relus", lambda: after_relu(nn.BatchNorm2d(3), nn.ReLU()), 3, scales=1),
    Case("bn before flatten", lambda: [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.BatchNorm2d(3), *head(48)], 1),
    Case(
        "bn1d between relus and last",
        lambda: [
            *(nn.Flatten(), nn.Linear(PIXELS, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.ReLU(), nn.BatchNorm1d(4)),
            *(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3)),
        ],
        3,
        scales=2,
    ),
    Case("bn around avgpool", lambda: after_relu(nn.BatchNorm2d(3), nn.AvgPool2d(3, 1, 1), nn.BatchNorm2d(3)), 2),
    Case("avgpool", lambda: [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), *head(27)], 1),
    Case("avgpool first", lambda: [nn.AvgPool2d((2, 3), (2, 1)), nn.ReLU(), *head(24)], 1),
    Case("avgpool padding", lambda: [nn.AvgPool2d(3, 2, padding=1), nn.Conv2d(2, 3, 2), nn.ReLU(), *head(12)], 1),
    Case("avgpool divisor", lambda: [nn.AvgPool2d(2, 1, divisor_override=3), nn.ReLU(), *head(50)], 1),
    Case("normalize conv", lambda: [Normalize((0.4, 0.6), (0.25, 0.5)), *_conv(3, 48, kernel_size=3)()], 1),
    Case(
        "normalize padded conv bn",
        lambda: [
            *(Normalize((0.4, 0.6), (0.25, 0.5)), nn.Conv2d(2, 4, 3, padding=(1, 2), groups=2), nn.BatchNorm2d(4)),
            *(nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2), nn.ReLU(), *head(18)),
        ],
        2,
    ),
    Case("normalize flatten linear", lambda: [Normalize((0.4, 0.6), (0.25, 0.5)), *head(PIXELS)], 0),
    Case(
        "normalize bn avgpool",
        lambda: [Normalize((0.4, 0.6), (0.25, 0.5)), nn.BatchNorm2d(2), nn.AvgPool2d(3, 2, 1), nn.ReLU(), *head(18)],
        1,
    ),
    Case("normalize relu", lambda: [Normalize((0.4, 0.6), (0.25, 0.5)), nn.ReLU(), *head(PIXELS)], 1, scales=1),
    Case(
        "nested",
        lambda: [
            nn.Sequential(nn.Identity(), nn.Sequential(nn.Conv2d(2, 3, 3), nn.Identity(), nn.BatchNorm2d(3))),
            nn.Sequential(nn.ReLU(inplace=True), nn.Sequential(*head(48)), nn.Identity()),
        ],
        1,
    ),
    Case("residual", lambda: [Residual(), *head(27)], 2),
    Case("residual after normalize", lambda: [Normalize((0.4, 0.6), (0.25, 0.5)), Residual(), *head(27)], 2, scales=1),
    Case("residual identity", lambda: [IdentityShortcut(), *head(108)], 2),
    Case("residual pre-activation", lambda: [PreActivation(), nn.ReLU(), *head(108)], 2, scales=1),
    Case("residual normalized twice", lambda: [NormalizedTwice(), nn.Linear(PIXELS, 3)], 1, scales=1),
    Case("residual stack", lambda: [Residual(), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1), Residual(), *head(12)], 4),
    Case("doubled", lambda: [Doubled()], 1),
    Case("shared relu", lambda: [SharedRelu()], 3),
)


class Block(nn.Module):
    """A residual block whose branches look at windows of different size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, 2, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.skip = nn.Conv2d(3, 4, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.skip(x))


def _deep(*layers: nn.Module, features: int) -> list[nn.Module]:
    """Layers that are neither first nor last: their rows live on windows."""
    tail = [nn.Flatten(), nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, CLASSES)]
    return [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), *layers, nn.ReLU(), *tail]


DEEP = (
    Case("deep stride", lambda: _deep(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2, 2), features=16), 4),
    Case("deep padding", lambda: _deep(nn.Conv2d(3, 4, (3, 2), (2, 3), (2, 1)), features=48), 3),
    Case("deep only padding", lambda: _deep(nn.Conv2d(3, 4, 1, 1, 1), features=256), 3),
    Case("deep groups", lambda: _deep(nn.Conv2d(3, 3, 3, 2, groups=3), features=12), 3),
    Case("deep dilation", lambda: _deep(nn.Conv2d(3, 4, 3, 2, 2, dilation=2), features=36), 3),
    Case("deep pool", lambda: _deep(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), features=16), 3),
    Case("deep block", lambda: _deep(Block(), nn.Conv2d(4, 3, 3, padding=1), features=27), 5),
)


def case_named(name: str) -> Case:
    return next(case for case in (*ZOO, *DEEP) if case.name == name)
