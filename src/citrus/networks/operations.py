"""The plain operations a network is made of once normalisation and BatchNorm are folded away.

Three kinds are enough for every bound: affine maps (`Conv`, `Linear`, `Scale`, `Flatten`), `Relu`, and `Add` of two
branches. An affine operation x -> W x + w answers three questions: where does a point go (`op(x)`), how wide can a box
of radius r become (`op.magnitude(r)` = |W| r), and what does a linear function of the result say about the argument
(`op.transpose(rows, ...)` = rows W).

Where layers were folded into one, a proof is about the layers as they were (bounds/rounding.py): `slack` says how far
the bias is from what they add in truth, `mass` how large the numbers are that they add, `off` which share of itself a
weight may be off by, and `stray` how far one that is next to nothing may be off. An operation that is a layer as it was
stored has none of these.

A row that looks at few pixels of a map is stored as a window of it: `corner` is the window's first pixel, its size that
of the tensor. Linear bounds of early layers are cheap because of that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.networks.convolution import Pair, convolve, reach, spread
from citrus.networks.kernels import compilable

Arithmetic = Literal["real", "float32"]
"""What a network is: the function of its weights over the real numbers, or whatever a program makes of it that computes
in float32, in any order of summation."""

Corner = Pair
"""Row and column of a window's first pixel; (0, 0) for vectors."""


def window(values: Tensor, corner: Corner, like: Tensor) -> Tensor:
    """The part of a map (..., C, H, W) that a window of the size of `like` at `corner` sees; vectors stay whole."""
    if like.dim() < 4 or values.shape[-2:] == like.shape[-2:]:
        return values
    for axis, start in zip((-2, -1), corner, strict=True):
        if values.shape[axis] > 1:
            values = values.narrow(axis, start, like.shape[axis])
    return values


@dataclass(frozen=True)
class Conv:
    """A convolution. `bias` is (channels,), or a map (C, H, W) once a normalisation before padding is folded in."""

    weight: Tensor
    bias: Tensor
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    mass: Tensor | None = None
    slack: Tensor | None = None
    off: float = 0.0
    stray: float = 0.0

    def _apply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolve(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias.dim() == 1:
            return self._apply(x, self.weight, self.bias)
        return self._apply(x, self.weight, None) + self.bias

    def magnitude(self, radius: Tensor) -> Tensor:
        return self._apply(radius, self.weight.abs(), None)

    def transpose(self, rows: Tensor, shape: tuple[int, ...], corner: Corner = (0, 0)) -> tuple[Tensor, Corner]:
        """rows W for rows (n, C, h, w) on a window of the result; `shape` is the argument's, the rest is cut."""
        given = spread(rows, self.weight, self.stride, self.dilation, self.groups)
        first = []
        for axis in (0, 1):
            start = corner[axis] * self.stride[axis] - self.padding[axis]
            end = min(start + given.shape[2 + axis], shape[1 + axis])
            if end <= max(start, 0):  # sees nothing but padding: one pixel that does not count
                given = given.narrow(2 + axis, 0, 1) * 0
                first.append(0)
            else:
                first.append(max(start, 0))
                given = given.narrow(2 + axis, first[axis] - start, end - first[axis])
        return given, (first[0], first[1])

    def reach(self, size: Pair) -> Pair:
        """Height and width of the argument's pixels that a window of the result sees."""
        return reach(size, self.weight, self.stride, self.dilation)


@dataclass(frozen=True)
class Linear:
    """A fully connected layer on flat vectors."""

    weight: Tensor
    bias: Tensor
    mass: Tensor | None = None
    slack: Tensor | None = None
    off: float = 0.0
    stray: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def magnitude(self, radius: Tensor) -> Tensor:
        return F.linear(radius, self.weight.abs())

    def transpose(self, rows: Tensor, shape: tuple[int, ...], corner: Corner = (0, 0)) -> tuple[Tensor, Corner]:
        return rows @ self.weight, corner


@dataclass(frozen=True)
class Scale:
    """A diagonal affine map that found no convolution or linear layer to be folded into; both parts broadcast to x."""

    weight: Tensor
    bias: Tensor
    mass: Tensor | None = None
    slack: Tensor | None = None
    off: float = 0.0
    stray: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def magnitude(self, radius: Tensor) -> Tensor:
        return radius * self.weight.abs()

    def transpose(self, rows: Tensor, shape: tuple[int, ...], corner: Corner = (0, 0)) -> tuple[Tensor, Corner]:
        return rows * window(self.weight, corner, rows), corner


@dataclass(frozen=True)
class Flatten:
    """(batch, C, H, W) to (batch, C*H*W)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    magnitude = __call__

    def transpose(self, rows: Tensor, shape: tuple[int, ...], corner: Corner = (0, 0)) -> tuple[Tensor, Corner]:
        return rows.reshape(-1, *shape), (0, 0)


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


Weighted = Conv | Linear | Scale
Affine = Weighted | Flatten
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
    arithmetic: Arithmetic = "real"

    @compilable
    def __call__(self, x: Tensor) -> Tensor:
        return self.values(x)[-1]

    def values(self, x: Tensor) -> list[Tensor]:
        """Every value of the network at x: value 0 is x itself, the last one holds the class scores."""
        values = [x]
        for node in self.nodes:
            values.append(node.op(*(values[i] for i in node.inputs)))
        return values

    def double(self) -> "Graph":
        """The same network with its weights in float64."""
        return self.map(Tensor.double)

    @property
    def classes(self) -> int:
        return self.nodes[-1].shape[0]

    @property
    def relu_inputs(self) -> list[int]:
        """The values that enter the ReLUs, in order."""
        return [node.inputs[0] for node in self.nodes if isinstance(node.op, Relu)]

    @property
    def relu_results(self) -> list[int]:
        """The values that come out of the ReLUs, in order."""
        return [i for i, node in enumerate(self.nodes, start=1) if isinstance(node.op, Relu)]

    @property
    def neurons(self) -> int:
        """ReLUs in all."""
        return sum(math.prod(self.shape_of(value)) for value in self.relu_inputs)

    def shape_of(self, value: int) -> tuple[int, ...]:
        """Shape of a value, without the batch axis."""
        return self.nodes[value - 1].shape if value else self.input_shape

    def behind(self, value: int) -> "Graph":
        """The network from a value on; no node behind it may read an earlier one."""
        nodes = (replace(node, inputs=tuple(i - value for i in node.inputs)) for node in self.nodes[value:])
        return replace(self, nodes=tuple(nodes), input_shape=self.shape_of(value))

    def to(self, device: torch.device | str) -> "Graph":
        """The same graph with its weights on a device."""
        return self.map(lambda weight: weight.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Graph":
        """The same graph with every weight changed, e.g. `graph.map(Tensor.detach)` or `graph.map(Tensor.double)`."""

        def changed(op: Any) -> Any:
            return replace(op, **{k: change(v) for k, v in vars(op).items() if isinstance(v, Tensor)})

        return replace(self, nodes=tuple(replace(n, op=changed(n.op)) for n in self.nodes))
