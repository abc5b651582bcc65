"""Tiny networks of every kind, with images and a radius that floats can go wrong on.

    instance = Instance.random("residual", seed=0, dtype=torch.float32)
    instance.truth((0, 1, 2))         # of these images so many survive every shared perturbation, in exact numbers

Layers of very different scale, terms that cancel, ties, subnormal numbers, long sums; and most instances are on edge:
some least margin is 0 but for one rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import cast

import torch
from torch import Tensor, nn

from citrus.networks import Normalize
from trial.exact import Skip, Step, exact, least_margin, most_violated, steps_of

IMAGES = 24


class Draw:
    """Random choices of one network, all from one seed."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.generator, dtype=torch.float64))

    def integer(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def linear(self, size: int, out: int) -> nn.Linear:
        layer = nn.Linear(size, out)
        layer.weight.data, layer.bias.data = self.normal(out, size), 0.5 * self.normal(out)
        return layer

    def conv(self, channels: int, out: int, padding: int) -> nn.Conv2d:
        layer = nn.Conv2d(channels, out, (1, 2), padding=(0, padding))
        layer.weight.data, layer.bias.data = self.normal(out, channels, 1, 2), 0.5 * self.normal(out)
        return layer

    def norm(self, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.BatchNorm1d | nn.BatchNorm2d:
        size = layer.num_features
        layer.weight.data, layer.bias.data = self.normal(size), self.normal(size)
        layer.running_mean = self.normal(size) * 10 ** self.uniform(-1, 3)
        layer.running_var = torch.exp(self.normal(size))
        return layer


Layers = list[nn.Module]


def plain(draw: Draw, inputs: int, classes: int) -> Layers:
    layers: Layers = [nn.Flatten()]
    size = inputs
    for _ in range(draw.integer(1, 3)):
        width = draw.integer(2, 4)
        layers += [draw.linear(size, width), nn.ReLU()]
        size = width
    return [*layers, draw.linear(size, classes)]


def convolution(draw: Draw, inputs: int, classes: int) -> Layers:
    first, second = draw.conv(1, 2, 1), draw.conv(2, 2, draw.integer(0, 1))
    width = inputs + 1 + (1 if second.padding == (0, 1) else -1)
    return [first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), draw.linear(2 * width, classes)]


def pooling(draw: Draw, inputs: int, classes: int) -> Layers:
    window = draw.integer(2, min(3, inputs + 1))
    pool = nn.AvgPool2d((1, window), stride=1)
    return [draw.conv(1, 2, 1), nn.ReLU(), pool, nn.Flatten(), draw.linear(2 * (inputs + 2 - window), classes)]


def residual(draw: Draw, inputs: int, classes: int) -> Layers:
    width = draw.integer(2, 3)
    inner = Skip(draw.linear(width, width), nn.ReLU(), draw.linear(width, width))
    after: Layers = [nn.ReLU()] if draw.integer(0, 1) else []
    return [nn.Flatten(), draw.linear(inputs, width), nn.ReLU(), inner, *after, draw.linear(width, classes)]


def batchnorm(draw: Draw, inputs: int, classes: int) -> Layers:
    conv, norm = draw.conv(1, 2, 1), draw.norm(nn.BatchNorm2d(2))
    head = [draw.linear(2 * (inputs + 1), 2), draw.norm(nn.BatchNorm1d(2)), nn.ReLU(), draw.linear(2, classes)]
    last: Layers = [draw.norm(nn.BatchNorm1d(classes))] if draw.integer(0, 1) else []
    return [Normalize((0.4375,), (0.2,)), conv, norm, nn.ReLU(), nn.Flatten(), *head, *last]


def weights(layers: Layers) -> Iterator[nn.Linear | nn.Conv2d]:
    for layer in nn.Sequential(*layers).modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            yield layer


def ties(draw: Draw, inputs: int, classes: int) -> Layers:
    """Small whole numbers: margins that are 0 exactly, neurons that sleep at 0, classes that are the same."""
    layers = (plain, residual, convolution)[draw.integer(0, 2)](draw, inputs, classes)
    for layer in weights(layers):
        layer.weight.data, layer.bias.data = layer.weight.data.round(), layer.bias.data.round()
    last = list(weights(layers))[-1]
    if draw.integer(0, 1):
        last.weight.data[-1], last.bias.data[-1] = last.weight.data[0], last.bias.data[0]
    return layers


def cancelling(draw: Draw, inputs: int, classes: int) -> Layers:
    """A large number is added in one layer and taken away in the next."""
    first, second, last = draw.linear(inputs, 3), draw.linear(3, 3), draw.linear(3, classes)
    large = 10 ** draw.uniform(1, 8)
    first.bias.data += large
    second.bias.data -= second.weight.data.sum(1) * large
    return [nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last]


def scaled(draw: Draw, inputs: int, classes: int) -> Layers:
    layers = (plain, convolution, residual)[draw.integer(0, 2)](draw, inputs, classes)
    for layer in weights(layers):
        factor = 10 ** draw.uniform(-6, 6)
        layer.weight.data, layer.bias.data = (
            layer.weight.data * factor,
            layer.bias.data * factor * 10 ** draw.uniform(-3, 3),
        )
    return layers


def denormal(draw: Draw, inputs: int, classes: int) -> Layers:
    """Some layers, or all, next to the smallest number there is; others next to the largest."""
    layers = plain(draw, inputs, classes)
    smallest = 40 if draw.dtype == torch.float32 else 310
    for layer in weights(layers):
        power = (-smallest, 0, smallest - 12)[draw.integer(0, 2)]
        layer.weight.data, layer.bias.data = layer.weight.data * 10.0**power, layer.bias.data * 10.0**power
    return layers


def wide(draw: Draw, inputs: int, classes: int) -> Layers:
    """Long sums of small terms. Neurons are copies of two or three, so that they change along few lines, or there are
    none."""
    width, copies = 60, draw.integer(2, 3)
    first, second = draw.linear(inputs, copies), draw.linear(width, copies)
    repeated = [nn.Linear(inputs, width), nn.Linear(width, width)]
    for layer, few in zip(repeated, (first, second), strict=True):
        layer.weight.data, layer.bias.data = (
            few.weight.data.repeat(width // copies, 1),
            few.bias.data.repeat(width // copies),
        )
    middle: Layers = [nn.ReLU(), repeated[1]] if draw.integer(0, 1) else []
    last = draw.linear(width, classes)
    deep = [draw.linear(inputs, width), draw.linear(width, width), draw.linear(width, width)]
    layers = [nn.Flatten(), *((repeated[0], *middle, nn.ReLU()) if draw.integer(0, 1) else deep), last]
    if draw.integer(0, 1):  # without signs errors add up as in the worst case; one class against constants
        for layer in weights(layers):
            layer.weight.data = layer.weight.data.abs()
        last.weight.data[1:] = 0
    return layers


KINDS: dict[str, Callable[[Draw, int, int], Layers]] = {
    builder.__name__: builder
    for builder in (plain, convolution, residual, pooling, batchnorm, ties, cancelling, scaled, denormal, wide)
}


@dataclass(frozen=True)
class Instance:
    """A tiny network with images and a radius."""

    kind: str
    network: nn.Sequential
    steps: tuple[Step, ...]
    images: Tensor
    labels: Tensor
    eps: float

    @staticmethod
    def random(kind: str, seed: int, dtype: torch.dtype) -> "Instance":
        draw = Draw(seed, dtype)
        inputs = 2 if draw.integer(0, 9) else draw.integer(3, 4)
        layers = KINDS[kind](draw, inputs, draw.integer(2, 3))
        network = nn.Sequential(*layers).to(dtype).eval()
        images = torch.rand(IMAGES, 1, 1, inputs, generator=draw.generator, dtype=torch.float64)
        images = (8 * images).round() / 8 if kind == "ties" else images
        eps = (0.125, 0.25)[draw.integer(0, 1)] if kind == "ties" else 10 ** draw.uniform(-4, 0)
        with torch.no_grad():
            if kind != "ties":  # no class shall be the answer to everything
                mean = network(images.to(dtype)).mean(0)
                cast(nn.Linear, layers[-1]).bias -= torch.where(mean.isfinite(), mean, 0.0)
            labels = network(images.to(dtype)).argmax(1)
        steps = steps_of(layers, (1, 1, inputs))[0]
        made = Instance(kind, network, steps, images.to(dtype), labels, eps)
        edge = draw.integer(0, 3)
        return made if edge == 0 else made.on_edge(draw) if edge == 1 else made.all_on_edge()

    def on_edge(self, draw: Draw) -> "Instance":
        """The bias of a class is changed so that the least margin of some image is 0 but for its rounding."""
        place = draw.integer(0, len(self.images) - 1)
        label = int(self.labels[place])
        last = list(self.network)[-1]
        assert isinstance(last, nn.Linear | nn.BatchNorm1d)
        wrong = (label + draw.integer(1, len(last.bias) - 1)) % len(last.bias)
        least = least_margin(self.steps, exact(self.images[place]), label, wrong, Fraction(self.eps))
        share = 1 + draw.integer(-1, 1) * Fraction(10) ** draw.integer(-9, -5)
        moved = exact(last.bias)[wrong] + least * share
        if abs(moved) > 10**30 or abs(moved) < Fraction(1, 10**300):
            return self
        with torch.no_grad():
            last.bias[wrong] = float(moved)
            labels = self.network(self.images).argmax(1)
        return replace(self, steps=steps_of(list(self.network), tuple(self.images.shape[1:]))[0], labels=labels)

    def all_on_edge(self) -> "Instance":
        """Every second image goes towards one of another class, as far as its least margin is 0 but for the image's
        rounding."""
        images, labels = self.images.clone(), self.labels.tolist()
        for place, label in list(enumerate(labels))[::2]:
            other = next((k % IMAGES for k in range(place, place + IMAGES) if labels[k % IMAGES] != label), None)
            if other is not None:
                moved = self._between(exact(self.images[place]), exact(self.images[other]), label, labels[other])
                images[place] = torch.tensor([float(v) for v in moved], dtype=torch.float64).view_as(images[place])
        with torch.no_grad():
            return replace(self, images=images, labels=self.network(images).argmax(1))

    def _between(self, image: list[Fraction], other: list[Fraction], label: int, wrong: int) -> list[Fraction]:
        """Where the least margin falls to 0 on the way (regula falsi, Illinois); the image itself if it is below 0."""

        def at(t: Fraction) -> list[Fraction]:
            return [v + t * (w - v) for v, w in zip(image, other, strict=True)]

        def least(t: Fraction) -> Fraction:
            return least_margin(self.steps, at(t), label, wrong, Fraction(self.eps))

        low, high = Fraction(0), Fraction(1)
        above, under = least(low), least(high)
        if above <= 0 or under >= 0:
            return image
        found = high
        for _ in range(8):
            found = Fraction(float(low + (high - low) * above / (above - under)))
            value = least(found)
            if value > 0:
                low, above, under = found, value, under / 2
            elif value < 0:
                high, under, above = found, value, above / 2
            else:
                break
        return at(found)

    def truth(self, index: tuple[int, ...]) -> int:
        """Images of a group that survive every perturbation."""
        found = most_violated(
            self.steps, [exact(self.images[i]) for i in index], self.labels[list(index)].tolist(), Fraction(self.eps)
        )
        return len(index) - found
