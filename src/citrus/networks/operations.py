"""The plain operations a network is made of once normalisation and BatchNorm are folded away.

Three kinds are enough for every bound: affine maps (`Conv`, `Linear`, `Scale`, `Flatten`), `Relu`, and `Add` of two
branches. An affine operation x -> W x + w answers three questions: where does a point go (`op(x)`), how wide can a box
of radius r become (`op.magnitude(r)` = |W| r), and what does a linear function of the result say about the argument
(`op.transpose(rows, ...)` = rows W).

A row that looks at few pixels of a map is stored as a window of it: `corner` is the window's first pixel, its size that
of the tensor. Linear bounds of early layers are cheap because of that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.networks.kernels import compilable

Corner = tuple[int, int]
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

    def transpose(self, rows: Tensor, shape: tuple[int, ...], corner: Corner = (0, 0)) -> tuple[Tensor, Corner]:
        """rows W for rows (n, C, h, w) on a window of the result; `shape` is the argument's, the rest is cut."""
        spread = _spread(self, rows)
        first = []
        for axis in (0, 1):
            start = corner[axis] * self.stride[axis] - self.padding[axis]
            end = min(start + spread.shape[2 + axis], shape[1 + axis])
            if end <= max(start, 0):  # sees nothing but padding: one pixel that does not count
                spread = spread.narrow(2 + axis, 0, 1) * 0
                first.append(0)
            else:
                first.append(max(start, 0))
                spread = spread.narrow(2 + axis, first[axis] - start, end - first[axis])
        return spread, (first[0], first[1])

    def reach(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the argument's pixels that a window of the result sees."""
        kernel = self.weight.shape[2:]
        height, width = (
            (n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(size, self.stride, self.dilation, kernel, strict=True)
        )
        return height, width


def _spread(conv: Conv, rows: Tensor) -> Tensor:
    """Transposed convolution without cutting; on a CPU by the fastest of three equal ways.

    oneDNN's strided transposed convolution runs at a twentieth of a matrix product's speed. Small windows are therefore
    one matrix product; else pixels of equal remainder modulo the stride are output channels of one plain convolution.
    """
    options = (conv.stride, 0, 0, conv.groups, conv.dilation)
    kernel, stride = tuple(conv.weight.shape[2:]), conv.stride
    if rows.device.type == "cpu" and rows.numel():
        size = conv.reach((rows.shape[2], rows.shape[3]))
        waste = size[0] * size[1] * conv.groups / (kernel[0] * kernel[1])
        inputs = rows[0].numel()
        if waste <= (8 if max(stride) > 1 else 1.5) and 2 * inputs <= rows.shape[0]:
            basis = torch.eye(inputs, dtype=rows.dtype).view(inputs, *rows.shape[1:])
            matrix = F.conv_transpose2d(basis, conv.weight, None, *options)
            return (rows.flatten(1) @ matrix.flatten(1)).view(-1, *matrix.shape[1:])
        if max(stride) > 1 and conv.groups == 1 and conv.dilation == (1, 1) and conv.weight.shape[1] <= 16:
            return _by_remainders(rows, conv.weight, stride)
    return F.conv_transpose2d(rows, conv.weight, None, *options)


def _by_remainders(rows: Tensor, weight: Tensor, stride: tuple[int, int]) -> Tensor:
    """y[s a + p] = sum_j w[s j + p] x[a - j]: per remainder p a convolution of stride 1, interleaved at the end."""
    out, into, *kernel = weight.shape
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    missing = [m * s - k for m, s, k in zip(taps, stride, kernel, strict=True)]
    padded = F.pad(weight, (0, missing[1], 0, missing[0]))
    split = padded.view(out, into, taps[0], stride[0], taps[1], stride[1]).flip(2, 4).permute(1, 3, 5, 0, 2, 4)
    phases = F.conv2d(rows, split.reshape(-1, out, *taps), padding=(taps[0] - 1, taps[1] - 1))
    n, _, height, width = phases.shape
    phases = phases.view(n, into, *stride, height, width).permute(0, 1, 4, 2, 5, 3)
    spread = phases.reshape(n, into, height * stride[0], width * stride[1])
    return spread[..., : spread.shape[2] - missing[0], : spread.shape[3] - missing[1]]


@dataclass(frozen=True)
class Linear:
    """A fully connected layer on flat vectors."""

    weight: Tensor
    bias: Tensor

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

    @compilable
    def __call__(self, x: Tensor) -> Tensor:
        return self.values(x)[-1]

    def values(self, x: Tensor) -> list[Tensor]:
        """Every value of the network at x: value 0 is x itself, the last one holds the class scores."""
        values = [x]
        for node in self.nodes:
            values.append(node.op(*(values[i] for i in node.inputs)))
        return values

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
        return Graph(tuple(nodes), self.shape_of(value))

    def to(self, device: torch.device | str) -> "Graph":
        """The same graph with its weights on a device."""
        return self.map(lambda weight: weight.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Graph":
        """The same graph with every weight changed, e.g. `graph.map(Tensor.detach)` or `graph.map(Tensor.double)`."""

        def changed(op: Any) -> Any:
            return replace(op, **{k: change(v) for k, v in vars(op).items() if isinstance(v, Tensor)})

        return Graph(tuple(replace(n, op=changed(n.op)) for n in self.nodes), self.input_shape)
