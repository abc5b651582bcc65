"""What the checker computes with, in float64: a network's affine maps, how much a computed sum may be off, linear
functions with their errors, and the lines around a ReLU.

The model of the machine: IEEE float64, u = 2^-53, sums in any order, with or without fused operations. A computed sum
of n products is off by at most gamma_n = n u / (1 - n u) times the sum of their absolute values (Higham, "Accuracy and
Stability of Numerical Algorithms", section 3.1). Convolutions are matrix products of unfolded images, because Winograd
or Fourier transforms have larger errors. `gamma` doubles gamma_(n + 8): the double covers the rounding of the bound
itself, which is a sum of numbers >= 0, and the 8 covers the few operations around a sum. TINY stands for underflow.

What a certificate is about is the layers of the network as they were stored. Where some were folded into one, its
weights may be off by the share `off` of themselves, or by `stray` where they are next to nothing, and its bias by
`slack`; |w| is the size of all that went into it, `mass`. If the certificate says float32 it is about every program
that runs the layers in float32 (u = 2^-24): the same model of its sums, with 16 terms more for layers that were folded
here and are not there.
"""

from dataclasses import dataclass, field
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.networks.operations import Affine, Conv, Flatten, Graph, Linear, Relu, Scale

UNIT = 2.0**-53
UNIT_32 = 2.0**-24
TINY_32 = 1e-30
TINY = 1e-300  # more than the underflow of 10^7 products even where subnormal numbers are flushed to zero

Corner = tuple[int, int]
"""Row and column of the first pixel of a window of a map."""


def gamma(terms: int) -> float:
    """Twice gamma_n for n = terms + 8."""
    n = terms + 8
    return 2 * n * UNIT / (1 - n * UNIT)


def gamma_of_float32(terms: int) -> float:
    """The same of a program that sums in float32, with 16 terms more; infinite where there are too many."""
    n = terms + 16 + 8
    return 2 * n * UNIT_32 / (1 - n * UNIT_32) if 4 * n * UNIT_32 < 1 else float("inf")


class Network:
    """A graph's weights in float64 and their absolute values."""

    def __init__(self, graph: Graph) -> None:
        self.rounds = graph.arithmetic == "float32"
        self.exact = graph.map(lambda t: t.detach().cpu().double())
        self.absolute = self.exact.map(Tensor.abs)
        self.nodes = self.exact.nodes
        self.neurons = graph.neurons
        self.shapes = [tuple(graph.input_shape), *(tuple(node.shape) for node in graph.nodes)]
        self.relus = [k for k, node in enumerate(self.nodes) if isinstance(node.op, Relu)]
        self.widest = max(max(map(prod, self.shapes)), *(columns_of(node.op, node.shape) for node in self.nodes))

    def split(self, slopes: Tensor) -> dict[int, Tensor]:
        """Slopes (row, neuron) of all ReLUs in order, as (row, *shape) for each ReLU by the number of its node."""
        shapes = [self.shapes[k + 1] for k in self.relus]
        parts = slopes.split([prod(shape) for shape in shapes], 1)
        return {k: part.reshape(-1, *shape) for k, part, shape in zip(self.relus, parts, shapes, strict=True)}


def columns_of(op: object, shape: tuple[int, ...]) -> int:
    """Numbers in the unfolded argument of a convolution with a result of this shape."""
    return op.groups * op.weight[0].numel() * prod(shape[1:]) if isinstance(op, Conv) else 0


def product(op: Affine, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """W x for x (n, ...), as (n, *shape)."""
    if isinstance(op, Conv):
        columns = F.unfold(x, op.weight.shape[2:], op.dilation, op.padding, op.stride).unflatten(1, (op.groups, -1))
        x = op.weight.reshape(op.groups, -1, columns.shape[2]) @ columns
    elif isinstance(op, Linear):
        x = x @ op.weight.T
    elif isinstance(op, Scale):
        x = x * op.weight
    return x.reshape(-1, *shape)


def cut(whole: Tensor, corner: Corner, like: Tensor) -> Tensor:
    """The pixels of a map (..., height, width) under a window of the size of `like` at `corner`."""
    (top, left), (height, width) = corner, like.shape[-2:]
    return whole[..., top : top + height, left : left + width]


def pixels_read(op: Conv, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of what a window of a convolution's result reads, padding included.

    Pixel i of the result reads stride * i + dilation * k for each k of the kernel.
    """
    height, width = (
        step * (pixels - 1) + gap * (taps - 1) + 1
        for pixels, step, gap, taps in zip(size, op.stride, op.dilation, op.weight.shape[2:], strict=True)
    )
    return height, width


def transposed(
    op: Affine, rows: Tensor, shape: tuple[int, ...], corner: Corner | None = None
) -> tuple[Tensor, Corner | None]:
    """P W for rows P (n, ...) over the result of an operation, as rows over its argument, which has this shape.

    Rows that are zero outside a window of a map, whose corner is given, become rows over the window that it reads.
    """
    if isinstance(op, Linear):
        return rows @ op.weight, None
    if isinstance(op, Flatten):
        return rows.reshape(-1, *shape), None
    if isinstance(op, Scale):
        weight = op.weight.expand(shape)
        return rows * (weight if corner is None else cut(weight, corner, rows)), corner
    weight = op.weight.reshape(op.groups, len(op.weight) // op.groups, -1)
    columns = (weight.mT @ rows.reshape(len(rows), op.groups, weight.shape[1], -1)).flatten(1, 2)
    kernel = op.weight.shape[2:]
    if corner is None:
        return F.fold(columns, shape[1:], kernel, op.dilation, op.padding, op.stride), None
    read = pixels_read(op, (rows.shape[2], rows.shape[3]))
    values = F.fold(columns, read, kernel, op.dilation, 0, op.stride)
    start = [step * first - pad for step, first, pad in zip(op.stride, corner, op.padding, strict=True)]
    inside = [(max(0, -s), min(n, most - s)) for s, n, most in zip(start, read, shape[1:], strict=True)]
    if any(end <= begin for begin, end in inside):  # nothing but padding is read
        return rows.new_zeros(len(rows), shape[0], 1, 1), (0, 0)
    (top, bottom), (left, right) = inside
    return values[..., top:bottom, left:right], (start[0] + top, start[1] + left)


def bias_of(op: Affine, shape: tuple[int, ...]) -> Tensor:
    """What is added to W x, as a tensor of this shape."""
    return torch.zeros(shape, dtype=torch.float64) if isinstance(op, Flatten) else beside(op, op.bias, shape)


def beside(op: Affine, bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A bias of an operation, or numbers in its place, as a tensor of this shape."""
    return (bias[:, None, None] if isinstance(op, Conv) and bias.dim() == 1 else bias).expand(shape)


def mass_of(op: Affine, shape: tuple[int, ...]) -> Tensor:
    """The size of all that was summed into the bias, as a tensor of this shape."""
    if isinstance(op, Flatten) or op.mass is None:
        return bias_of(op, shape).abs()
    return beside(op, op.mass, shape)


def terms_of(op: Affine) -> int:
    """The most products that are summed for one number of W x or of P W."""
    if isinstance(op, Conv):
        kernel = op.weight[0, 0].numel()
        return max(op.weight[0].numel(), len(op.weight) // op.groups * kernel)
    return max(op.weight.shape) if isinstance(op, Linear) else 1


@dataclass(frozen=True)
class LinearForms:
    """Lower bounds values . x + offset - error of something, for x a value of the network or a window of a map."""

    values: Tensor  # (row, *shape)
    offset: Tensor  # (row,)
    error: Tensor  # (row,)
    corner: Corner | None = field(default=None, kw_only=True)  # of the window outside of which values are zero

    @staticmethod
    def of(values: Tensor, corner: Corner | None = None) -> "LinearForms":
        """Without an offset or an error."""
        zero = values.new_zeros(len(values))
        return LinearForms(values, zero, zero, corner=corner)

    @staticmethod
    def joined(parts: list["LinearForms"]) -> "LinearForms":
        """All rows, those of the first part first."""
        return LinearForms(*(torch.cat([getattr(p, name) for p in parts]) for name in ("values", "offset", "error")))

    def __getitem__(self, rows: Tensor | slice) -> "LinearForms":
        return LinearForms(self.values[rows], self.offset[rows], self.error[rows], corner=self.corner)

    def adding(self, values: Tensor, amount: Tensor, error: Tensor, corner: Corner | None = None) -> "LinearForms":
        """Other values, with an amount that has an error; the sum of offsets is rounded once more."""
        offset = self.offset + amount
        return LinearForms(values, offset, self.error + error + 4 * UNIT * offset.abs() + TINY, corner=corner)

    def seen(self, whole: Tensor) -> Tensor:
        """The part of a tensor over x that lies under the rows' window."""
        return whole if self.corner is None else cut(whole, self.corner, self.values)


@dataclass(frozen=True)
class ReluLines:
    """Lines around relu on [l, u]: lower z <= relu(z) <= upper z + height."""

    undecided: Tensor
    lower: Tensor  # of the box, or with slopes of its own for each row
    upper: Tensor
    height: Tensor

    @staticmethod
    def around(l: Tensor, u: Tensor) -> "ReluLines":  # noqa: E741
        on = l >= 0
        undecided = ~(on | (u <= 0))  # also where the box is NaN
        upper = torch.where(undecided, u / (u - l), on.double())
        height = torch.maximum(-upper * l, (1 - upper) * u) * (1 + 8 * UNIT) + TINY
        lower = torch.where(undecided, (u > -l).double(), on.double())
        return ReluLines(undecided, lower, upper, torch.where(undecided, height, 0.0))
