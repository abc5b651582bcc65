"""Interval bound propagation (IBP) in centre-radius form over a network's operations.

    bounds = interval(graph, centre, radius, margin_rows(labels, graph.classes))
    certified = (bounds.lower > 0).all(1)

Batched, and differentiable in the weights, the centre and the radius. `interval` computes in float64, and a box grows
after each step by what the step may be off by (rounding.py). In training nothing is proved, and boxes are as they are
computed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from citrus.bounds.rounding import TINY, below, beside_terms, gamma, shares, sum_share
from citrus.errors import CitrusError
from citrus.networks.kernels import compilable, exact
from citrus.networks.operations import Add, Arithmetic, Graph, Linear, Operation, Relu


@dataclass(frozen=True)
class Box:
    """All points within `radius` of `centre`, coordinate by coordinate."""

    centre: Tensor
    radius: Tensor

    @property
    def lower(self) -> Tensor:
        return self.centre - self.radius

    @property
    def upper(self) -> Tensor:
        return self.centre + self.radius

    @staticmethod
    def between(lower: Tensor, upper: Tensor) -> "Box":
        """A box that holds everything between these ends. Where they cross it is next to a point."""
        return Box((lower + upper) / 2, ((upper - lower) / 2).clamp(min=0)).grown(gamma(0, lower.dtype))

    def grown(self, share: float) -> "Box":
        """Wider by a share of the largest number inside."""
        return Box(self.centre, self.radius + share * (self.centre.abs() + self.radius))

    def around(self, dtype: torch.dtype) -> "Box":
        """A box of numbers of another precision around this one; one that ends at 0 still does."""
        if dtype == self.centre.dtype:
            return self
        centre = self.centre.to(dtype)
        radius = -below(-self.radius - (self.centre - centre).abs(), dtype)
        centre = torch.where(self.centre >= self.radius, torch.maximum(centre, radius), centre)
        return Box(torch.where(-self.centre >= self.radius, torch.minimum(centre, -radius), centre), radius)

    def __getitem__(self, index: Any) -> "Box":
        """The boxes of some images."""
        return Box(self.centre[index], self.radius[index])


@dataclass(frozen=True)
class Bounds:
    """What a bound says: `lower` and `upper` of each specification row, and the boxes that enter each ReLU."""

    lower: Tensor
    upper: Tensor
    pre_activations: tuple[Box, ...]


@exact
def interval(graph: Graph, centre: Tensor, radius: Tensor | float, spec: Tensor | None = None) -> Bounds:
    """Bound spec @ network(x) for all x with |x - centre| <= radius, pixel by pixel.

    `spec` is (batch, rows, classes); None means the class scores themselves. It is multiplied into the last linear
    layer (last-layer elision), so that correlated scores cancel.
    """
    image, rows = centre.double(), None if spec is None else spec.double()
    wide = checked_radius(graph, image, radius.double() if isinstance(radius, Tensor) else radius)
    found = _propagate(graph.double(), image, wide, rows, 1.0, True, graph.arithmetic)
    boxes = tuple(box.around(centre.dtype) for box in found.pre_activations)
    return Bounds(below(found.lower, centre.dtype), -below(-found.upper, centre.dtype), boxes)


def training_interval(
    graph: Graph,
    centre: Tensor,
    radius: Tensor | float,
    spec: Tensor | None = None,
    shrink: float = 1.0,
    keep_boxes: bool = True,
) -> Bounds:
    """`interval` in the precision that torch is set to: what training uses, where nothing is proved.

    `shrink` < 1 multiplies the upper bound of every ReLU that may be on or off, so that the result is no bound any
    more: SABR trains so at small eps. Without `keep_boxes` the boxes that entered the ReLUs are left out.
    """
    return _propagate(graph, centre, checked_radius(graph, centre, radius), spec, shrink, keep_boxes, None)


def checked_radius(graph: Graph, centre: Tensor, radius: Tensor | float) -> Tensor:
    """The radius as a tensor, one row if all images share it. A negative one in a tensor becomes NaN, which proves
    nothing: to raise an error for it, the host would have to wait for the device."""
    if tuple(centre.shape[1:]) != tuple(graph.input_shape):
        raise CitrusError(f"The network takes images of shape {graph.input_shape}, got {tuple(centre.shape[1:])}.")
    if isinstance(radius, float | int):
        if not radius >= 0:
            raise CitrusError(f"The radius of a box must not be negative, got {radius}.")
        return torch.full_like(centre[:1], radius)
    if radius.dim() == 0:
        radius = torch.ones_like(centre[:1]) * radius
    return torch.where(radius >= 0, radius, torch.nan)


@compilable
def _propagate(
    graph: Graph,
    centre: Tensor,
    radius: Tensor,
    spec: Tensor | None,
    shrink: float,
    keep_boxes: bool,
    arithmetic: Arithmetic | None,
) -> Bounds:
    *nodes, last = graph.nodes
    # A radius shared by all images stays one row until the first ReLU: the first layer then bounds it only once.
    rows = len(radius) if radius.dim() == centre.dim() else 1
    values = [Box(centre, radius.expand(rows, *centre.shape[1:]))]
    entering: list[Box] = []
    for node in nodes:
        values.append(through(node.op, [values[i] for i in node.inputs], shrink, entering, arithmetic))
    boxes = [values[i] for i in last.inputs]
    if spec is not None and isinstance(last.op, Linear):
        output = elided(last.op, spec, boxes[0], arithmetic)
    else:
        output = through(last.op, boxes, shrink, entering, arithmetic)
        output = output if spec is None else map_rows(spec, output, arithmetic)
    if arithmetic is not None:
        output = output.grown(gamma(0, centre.dtype))  # the ends are rounded, too
    return Bounds(output.lower, output.upper, tuple(entering) if keep_boxes else ())


def through(op: Operation, boxes: list[Box], shrink: float, entering: list[Box], arithmetic: Arithmetic | None) -> Box:
    """The box that contains all results of one operation; in training, without an arithmetic, but for rounding."""
    box = boxes[0]
    if isinstance(op, Relu):
        entering.append(box)
        return relu_box(box, shrink if arithmetic is None else 1 + gamma(0, box.centre.dtype))
    if isinstance(op, Add):
        total = Box(box.centre + boxes[1].centre, box.radius + boxes[1].radius)
        return total if arithmetic is None else total.grown(sum_share(arithmetic, box.centre.dtype))
    if arithmetic is None:
        return Box(op(box.centre), op.magnitude(box.radius))
    share = shares(op, arithmetic, box.centre.dtype)
    size = box.centre.abs() + box.radius
    return Box(op(box.centre), op.magnitude(box.radius + share.forward * size) + beside_terms(op, share, size))


def relu_box(box: Box, shrink: float = 1.0) -> Box:
    """relu of a box without the cancellation of upper - lower: c and r where it is positive, else both (c + r) / 2.

    Choices are made by `where`: torch.compile lets gradients of minimum and maximum lie in memory as a CPU wants them,
    and a GPU copies every map of a step once more.
    """
    half = ((box.centre + box.radius) / 2).relu()
    positive = box.centre > box.radius
    if shrink != 1.0:
        half = torch.where(box.centre.abs() < box.radius, shrink * half, half)
    return Box(torch.where(positive, box.centre, half), torch.where(positive, box.radius, half))


def elided(op: Linear, spec: Tensor, box: Box, arithmetic: Arithmetic | None) -> Box:
    """Rows of the specification over the result of the last layer, multiplied into it."""
    total = map_rows(spec @ op.weight, box, None, spec @ op.bias)
    if arithmetic is None:
        return total
    share = shares(op, arithmetic, box.centre.dtype)
    size, rows = box.centre.abs() + box.radius, spec.abs()
    products = share.forward + gamma(spec.shape[2], box.centre.dtype)
    error = products * torch.einsum("brf,bf->br", rows @ op.weight.abs(), size)
    beside = beside_terms(op, share, size).expand(len(rows), -1)
    return Box(total.centre, total.radius + error + torch.einsum("brc,bc->br", rows, beside))


def map_rows(weight: Tensor, box: Box, arithmetic: Arithmetic | None, bias: Tensor | float = 0.0) -> Box:
    """One linear map per image: weight is (batch, rows, features). Its weights are what they are, and no network's."""
    grown = box if arithmetic is None else box.grown(gamma(weight.shape[2], box.centre.dtype))
    centre = torch.einsum("brf,bf->br", weight, grown.centre) + bias
    least = 0.0 if arithmetic is None else TINY[centre.dtype]
    return Box(centre, torch.einsum("brf,bf->br", weight.abs(), grown.radius) + least)
