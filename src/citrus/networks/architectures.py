"""Architectures by name. Every network takes images in [0, 1]: its first layer normalises them.

network = build("cnn7", shape=(3, 32, 32), classes=10, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
"""

from collections.abc import Callable
from itertools import pairwise

from torch import nn

from citrus.errors import CitrusError, suggest
from citrus.networks.trace import Normalize

Shape = tuple[int, int, int]


def cnn7(shape: Shape, classes: int) -> list[nn.Module]:
    """The network of the certified-training literature: five 3x3 convolutions and two linear layers, all but the last
    with BatchNorm. The fifth convolution has stride 2 on images of 64 pixels (TinyImageNet), as in Shi et al."""
    strides = (1, 1, 2, 1, 2 if shape[1] >= 64 else 1)
    layers: list[nn.Module] = []
    channels, height, width = shape
    for out, stride in zip((64, 64, 128, 128, 128), strides, strict=True):
        layers += [nn.Conv2d(channels, out, 3, stride, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        channels, height, width = out, (height - 1) // stride + 1, (width - 1) // stride + 1
    layers += [nn.Flatten(), nn.Linear(channels * height * width, 512), nn.BatchNorm1d(512), nn.ReLU()]
    return [*layers, nn.Linear(512, classes)]


def convsmall(shape: Shape, classes: int) -> list[nn.Module]:
    """ConvSmall of the universal-perturbation literature: two 4x4 convolutions of stride 2, two linear layers."""
    height, width = (((size - 4) // 2 + 1 - 4) // 2 + 1 for size in shape[1:])
    convolutions = [nn.Conv2d(shape[0], 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU()]
    return [*convolutions, *_linear(32 * height * width, 100, classes)]


def smallcnn(shape: Shape, classes: int) -> list[nn.Module]:
    """A third of ConvSmall's work: for tests, demonstrations and two CPU cores."""
    height, width = ((size - 1) // 4 + 1 for size in shape[1:])
    first, second = nn.Conv2d(shape[0], 8, 5, 2, padding=2), nn.Conv2d(8, 16, 3, 2, padding=1)
    return [first, nn.ReLU(), second, nn.ReLU(), *_linear(16 * height * width, 64, classes)]


def mlp(shape: Shape, classes: int) -> list[nn.Module]:
    """Two hidden layers of 100."""
    return _linear(shape[0] * shape[1] * shape[2], 100, 100, classes)


def _linear(*sizes: int) -> list[nn.Module]:
    """Linear layers on flat vectors, with ReLUs between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


ARCHITECTURES: dict[str, Callable[[Shape, int], list[nn.Module]]] = {
    f.__name__: f for f in (cnn7, convsmall, smallcnn, mlp)
}


def build(
    name: str, shape: Shape, classes: int, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,)
) -> nn.Sequential:
    """A new network by name for images of `shape` (C, H, W); mean and std are folded in as its first layer."""
    if name not in ARCHITECTURES:
        raise CitrusError(f"Unknown network {name!r}: {suggest(name, ARCHITECTURES)}")
    if min(shape[1:]) < 12:
        raise CitrusError(f"Images of {shape[1]}x{shape[2]} pixels are too small for {name}: 12x12 at least.")
    if classes < 2:
        raise CitrusError(f"A classifier needs at least two classes, got {classes}.")
    channels = shape[0]
    mean, std = (v * channels if len(v) == 1 else v for v in (mean, std))
    if len(mean) != channels or len(std) != channels:
        raise CitrusError(f"Images of {channels} channels need as many means and stds, got {len(mean)} and {len(std)}.")
    return nn.Sequential(Normalize(mean, std), *ARCHITECTURES[name](shape, classes))
