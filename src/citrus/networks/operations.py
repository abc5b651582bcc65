"""The plain operations a network is made of once normalisation and BatchNorm are folded away.

Three kinds are enough for every bound: affine maps (`Conv`, `Linear`, `Scale`, `Flatten`), `Relu`, and `Add` of two
branches. An affine operation answers two questions: where does a point go (`op(x)`), and how wide can a box of radius r
become (`op.magnitude(r)`, the same map with absolute weights and no offset).
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Conv:
    """A convolution. `bias` is (channels,), or a map (C, H, W) once a normalisation in front of padding is folded in."""

    weight: Tensor
    bias: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def _apply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias.dim() == 1:
            return self._apply(x, self.weight, self.bias)
        return self._apply(x, self.weight, None) + self.bias

    def magnitude(self, radius: Tensor) -> Tensor:
        return self._apply(radius, self.weight.abs(), None)


@dataclass(frozen=True)
class Linear:
    """A fully connected layer on flat vectors."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def magnitude(self, radius: Tensor) -> Tensor:
        return F.linear(radius, self.weight.abs())


@dataclass(frozen=True)
class Scale:
    """A diagonal affine map that found no convolution or linear layer to be folded into; both parts broadcast to x."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def magnitude(self, radius: Tensor) -> Tensor:
        return radius * self.weight.abs()


@dataclass(frozen=True)
class Flatten:
    """(batch, C, H, W) to (batch, C*H*W)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    magnitude = __call__


@dataclass(frozen=True)
class Relu:
    """The only nonlinearity."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.relu()


@dataclass(frozen=True)
class Add:
    """The sum of two branches, as in a residual block."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


Affine = Conv | Linear | Scale | Flatten
Operation = Conv | Linear | Scale | Flatten | Relu | Add


@dataclass(frozen=True)
class Node:
    """One operation with its place: value 0 is the network's input, node i computes value i + 1 from `inputs`."""

    op: Operation
    inputs: tuple[int, ...]
    name: str
    shape: tuple[int, ...]
    """Shape of the result without the batch axis."""


@dataclass(frozen=True)
class Graph:
    """An ordered list of operations: what every bound, attack and exporter works on."""

    nodes: tuple[Node, ...]
    input_shape: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        values = [x]
        for node in self.nodes:
            values.append(node.op(*(values[i] for i in node.inputs)))
        return values[-1]

    @property
    def classes(self) -> int:
        return self.nodes[-1].shape[0]
