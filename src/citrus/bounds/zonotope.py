"""Zonotopes (DeepZ): sets centre + sum of e_k g_k with all errors e_k in [-1, 1], which a network's values lie in.

    zonotope = enclose(graph, value, centre, radius)
    point = zonotope.point(errors)                     # errors (batch, zonotope.size) in [-1, 1]

Singh et al., "Fast and Effective Robustness Certification" (2018). The input has one error per pixel. A ReLU whose
argument z may have both signs, l < 0 < u, lies between two parallel lines and gets an error of its own:

    relu(z) = s z + m (1 + e)  with  s = u / (u - l)  and  m = -s l / 2.

The generators g_k are never stored: a point is one forward pass through these lines, and the bounds of a neuron come
from one row carried backwards. Shapes do not depend on the data, so a training step with zonotopes can be recorded.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds.interval import Box
from citrus.bounds.refine import affine_path
from citrus.bounds.substitution import Rows, upper_line, walk_back
from citrus.networks.operations import Graph, Linear, Relu, window


@dataclass(frozen=True)
class ParallelLines:
    """relu(z) = slope z + half (1 + e) for some e in [-1, 1]."""

    slope: Tensor
    half: Tensor

    @staticmethod
    def around(box: Box) -> "ParallelLines":
        """The lines for arguments in a box. A NaN counts as undecided and spoils what it touches."""
        _, slope, intercept = upper_line(box)
        return ParallelLines(slope, intercept / 2)


@dataclass(frozen=True)
class Zonotope:
    """All that value `value` of a network may be when its input moves in a box."""

    graph: Graph
    value: int
    centre: Tensor
    radius: Tensor
    """Of the input, (batch, *input_shape)."""
    lines: tuple[ParallelLines, ...]
    """Of the ReLUs before the value."""

    @property
    def size(self) -> int:
        """Number of errors: one per pixel and per neuron of the ReLUs before."""
        return self.radius[0].numel() + sum(line.half[0].numel() for line in self.lines)

    def point(self, errors: Tensor) -> Tensor:
        """The point of each image's zonotope that errors (batch, size) name."""
        shapes = [self.radius.shape[1:], *(line.half.shape[1:] for line in self.lines)]
        parts = errors.split([math.prod(s) for s in shapes], 1)
        first, *others = (e.view(-1, *s) for e, s in zip(parts, shapes, strict=True))
        return self._forward(self.centre + self.radius * first, [1 + e for e in others])

    def first(self, count: int) -> "Zonotope":
        """The zonotopes of the first images."""
        lines = tuple(ParallelLines(line.slope[:count], line.half[:count]) for line in self.lines)
        return replace(self, centre=self.centre[:count], radius=self.radius[:count], lines=lines)

    def box(self) -> Box:
        """The smallest box around the zonotope."""
        centre = self._forward(self.centre, [1.0] * len(self.lines))
        path, shape = affine_path(self.graph, self.value), self.graph.shape_of(self.value)
        if path is not None:
            return Box(centre, functools.reduce(lambda radius, op: op.magnitude(radius), path, self.radius))
        parts = [self._reach(value, rows) for value, rows in self._rows(shape)]
        return Box(centre, torch.stack(parts, 2).reshape(-1, *shape))

    def _forward(self, x: Tensor, shares: list[Tensor] | list[float]) -> Tensor:
        """The value, where a ReLU with share t is slope z + half t."""
        values, place = [x], 0
        for node in self.graph.nodes[: self.value]:
            if isinstance(node.op, Relu):
                line, z = self.lines[place], values[node.inputs[0]]
                values.append(line.slope * z + line.half * shares[place])
                place += 1
            else:
                values.append(node.op(*(values[i] for i in node.inputs)))
        return values[-1]

    def _rows(self, shape: tuple[int, ...]) -> Iterator[tuple[int, Rows]]:
        """Unit rows of the value: of a map pixel by pixel, so that they live on small windows; of a layer at once."""
        node = self.graph.nodes[self.value - 1]
        if isinstance(node.op, Linear):
            yield node.inputs[0], Rows(node.op.weight[None])
            return
        unit = torch.eye(shape[0], dtype=self.centre.dtype, device=self.centre.device)
        if len(shape) == 1:
            yield self.value, Rows(unit[None])
            return
        for top in range(shape[1]):
            for left in range(shape[2]):
                yield self.value, Rows(unit[None, :, :, None, None], (top, left))

    def _reach(self, value: int, start: Rows) -> Tensor:
        """Sum of |rows g_k| over all errors: (batch, rows). Rows have no batch before they meet a ReLU."""
        reach = self.centre.new_zeros(len(self.centre), start.values.shape[1])

        def at_relu(rows: Rows, place: int) -> Rows:
            nonlocal reach
            line = self.lines[place]
            reach = reach + _weighted(rows, line.half)
            slope = window(line.slope[:, None], rows.corner, rows.values).contiguous()
            return Rows(rows.values * slope, rows.corner)

        over_input = walk_back(self.graph, value, start, at_relu)
        return reach + _weighted(over_input, self.radius)


def _weighted(rows: Rows, weights: Tensor) -> Tensor:
    """<weights, |rows|> for one weight vector per image: (batch, rows)."""
    weights = window(weights[:, None], rows.corner, rows.values).flatten(2)
    values = rows.values.abs().flatten(2)
    return torch.bmm(values.expand(len(weights), -1, -1), weights.mT).squeeze(2)


def enclose(graph: Graph, value: int, centre: Tensor, radius: Tensor) -> Zonotope:
    """The zonotope of a value, ReLU after ReLU; `radius` is (batch, *input_shape)."""
    lines: list[ParallelLines] = []
    for node in graph.nodes[:value]:
        if isinstance(node.op, Relu):
            lines.append(ParallelLines.around(Zonotope(graph, node.inputs[0], centre, radius, tuple(lines)).box()))
    return Zonotope(graph, value, centre, radius, tuple(lines))
