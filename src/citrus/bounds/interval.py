"""Interval bound propagation (IBP) in centre-radius form over a network's operations.

    bounds = interval(graph, centre, radius, margin_rows(labels, graph.classes))
    certified = (bounds.lower > 0).all(1)

Batched, and differentiable in the weights, the centre and the radius.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from citrus.errors import CitrusError
from citrus.networks.kernels import compilable, exact
from citrus.networks.operations import Add, Graph, Linear, Operation, Relu


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
        """The box with these ends. Where they cross by rounding it is a point."""
        return Box((lower + upper) / 2, ((upper - lower) / 2).clamp(min=0))

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
    return training_interval(graph, centre, radius, spec)


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
    return _propagate(graph, centre, checked_radius(graph, centre, radius), spec, shrink, keep_boxes)


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
    graph: Graph, centre: Tensor, radius: Tensor, spec: Tensor | None, shrink: float, keep_boxes: bool
) -> Bounds:
    *nodes, last = graph.nodes
    # A radius shared by all images stays one row until the first ReLU: the first layer then bounds it only once.
    rows = len(radius) if radius.dim() == centre.dim() else 1
    values = [Box(centre, radius.expand(rows, *centre.shape[1:]))]
    entering: list[Box] = []
    for node in nodes:
        values.append(through(node.op, [values[i] for i in node.inputs], shrink, entering))
    boxes = [values[i] for i in last.inputs]
    if spec is not None and isinstance(last.op, Linear):
        output = map_rows(spec @ last.op.weight, boxes[0], spec @ last.op.bias)
    else:
        output = through(last.op, boxes, shrink, entering)
        output = output if spec is None else map_rows(spec, output)
    return Bounds(output.lower, output.upper, tuple(entering) if keep_boxes else ())


def through(op: Operation, boxes: list[Box], shrink: float, entering: list[Box]) -> Box:
    """The box that contains all results of one operation."""
    if isinstance(op, Relu):
        entering.append(boxes[0])
        return relu_box(boxes[0], shrink)
    if isinstance(op, Add):
        return Box(boxes[0].centre + boxes[1].centre, boxes[0].radius + boxes[1].radius)
    return Box(op(boxes[0].centre), op.magnitude(boxes[0].radius))


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


def map_rows(weight: Tensor, box: Box, bias: Tensor | float = 0.0) -> Box:
    """One linear map per image: weight is (batch, rows, features)."""
    centre = torch.einsum("brf,bf->br", weight, box.centre) + bias
    return Box(centre, torch.einsum("brf,bf->br", weight.abs(), box.radius))
