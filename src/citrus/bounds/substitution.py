"""Backward substitution: from linear functions of a value inside the network to linear functions of its input.

    rows, given = substitute(graph, value, start, relaxed)

This one function is the core of CROWN, of optimised slopes and of the joint refinement: given the boxes that enter each
ReLU, any slopes in [0, 1] give sound planes (planes.py), and the result is differentiable in everything. Where
something is proved the lines around each ReLU stand `apart` by all that is rounded (deviations.py); in training, and
while slopes climb, they do not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.bounds.interval import Box
from citrus.bounds.rounding import gamma
from citrus.networks.operations import Add, Conv, Corner, Flatten, Graph, Operation, Relu, window

Slopes = Sequence[Tensor]
"""One tensor per ReLU: (batch, *neurons), shared by all rows of an image, or (batch, rows, *neurons)."""


@dataclass(frozen=True)
class Rows:
    """Linear functions of one value: coefficients (batch, rows, *window), zero outside the window at `corner`."""

    values: Tensor
    corner: Corner = (0, 0)


def adaptive_slopes(box: Box) -> Tensor:
    """The usual choice of lower slope, 1 if u > -l else 0: the smaller of the two triangles (no gradient)."""
    return (box.upper > -box.lower).to(box.centre.dtype)


def rows_of(spec: Tensor | None, graph: Graph, centre: Tensor) -> Tensor:
    """The specification, or a row for each class score where none is given."""
    if spec is not None:
        return spec
    return torch.eye(graph.classes, dtype=centre.dtype, device=centre.device).expand(len(centre), -1, -1)


class Relaxation(NamedTuple):
    """Two lines around relu(z) on [l, u]: lower * z and upper * z - upper * l, and how far off they are at the centre.

    Fields are (batch, 1, *neurons), or (batch, rows, *neurons) for slopes of their own per row.
    """

    lower: Tensor
    more: Tensor
    """The upper line's slope less the lower one's."""
    loss: Tensor
    """lower * z - relu(z) at the centre's z: <= 0, and 0 for a ReLU that is decided."""
    more_loss: Tensor
    """(upper * z - upper * l - relu(z)) - loss."""
    apart: Tensor | None
    """How far both lines are moved from each other, for rounding; None where nothing is proved."""

    def of_images(self, images: slice) -> "Relaxation":
        return Relaxation(*(t if t is None else t[images] for t in self))  # type: ignore[arg-type]

    def under(self, rows: "Rows") -> "Relaxation":
        """The part under a window of rows."""
        return Relaxation(*(t if t is None else window(t, rows.corner, rows.values) for t in self))  # type: ignore[arg-type]


class Triangle(NamedTuple):
    """What the relaxation of a layer of ReLUs needs besides the lower slopes; fields are (batch, 1, *neurons)."""

    decided: Tensor
    lower: Tensor
    """The adaptive slope: for a decided ReLU its own slope, 1 or 0."""
    upper: Tensor
    intercept: Tensor
    z: Tensor
    """The ReLU's argument at the centre."""
    relu_z: Tensor
    apart: Tensor | None = None

    def of_rows(self, where: Tensor) -> "Triangle":
        return Triangle(*(t if t is None else t[where] for t in self))  # type: ignore[arg-type]

    def relax(self, slope: Tensor | None = None) -> Relaxation:
        """Both lines, the lower one with the given slope in [0, 1] where the ReLU is undecided, or the adaptive one."""
        lower = self.lower
        if slope is not None:
            lower = torch.where(self.decided, lower, slope if slope.dim() == lower.dim() else slope[:, None])
        more = self.upper - lower
        loss, more_loss = lower * self.z - self.relu_z, torch.addcmul(self.intercept, more, self.z)
        return Relaxation(lower, more, loss, more_loss, self.apart)


def triangles(
    graph: Graph, boxes: Sequence[Box], at_centre: Sequence[Tensor], apart: Sequence[Tensor] = ()
) -> list[Triangle]:
    """The triangles of the first len(boxes) ReLUs, given the boxes that enter them; `apart` as in deviations.py."""
    found = []
    for k, (box, i) in enumerate(zip(boxes, graph.relu_inputs, strict=False)):
        decided, upper, intercept = upper_line(box)
        fields = [decided, adaptive_slopes(box), upper, intercept, at_centre[i], at_centre[i].relu(), *apart[k : k + 1]]
        found.append(Triangle(*(t[:, None] for t in fields)))
    return found


def upper_line(box: Box) -> tuple[Tensor, Tensor, Tensor]:
    """Which ReLUs are decided, and slope and intercept of the line above every ReLU: of a decided one its own.

    A NaN box counts as undecided and spoils every row that touches it.
    """
    lower, upper = box.lower, box.upper
    decided = (lower >= 0) | (upper <= 0)
    slope = torch.where(decided, adaptive_slopes(box), upper / torch.where(decided, 1.0, upper - lower))
    return decided, slope, torch.where(decided, 0.0, -lower * slope)


def substitute(graph: Graph, value: int, start: Rows, relaxed: Sequence[Relaxation]) -> tuple[Rows, Tensor]:
    """Carry lower bounds of `start` @ value back to the input: (rows over the input, what the ReLUs give away).

    At a ReLU a positive coefficient takes the lower line and a negative one the upper line, so that with P the rows
    over its result and z its argument, P relu(z) >= Q z + const. Written around the centre's z*, the bound at delta = 0
    is the value there plus  sum (P- upper* + P+ lower*)  of the lines' errors at z*: decided ReLUs add exactly nothing.
    """
    given = start.values.new_zeros(start.values.shape[:2])

    def at_relu(rows: Rows, place: int) -> Rows:
        nonlocal given
        rows, loss = _through_relu(rows, relaxed[place], len(relaxed))
        given = given + loss
        return rows

    return walk_back(graph, value, start, at_relu), given


def walk_back(graph: Graph, value: int, start: Rows, at_relu: Callable[[Rows, int], Rows]) -> Rows:
    """Rows over the input from rows over a value; `at_relu` takes the rows over a ReLU's result and its place."""
    places = {result: place for place, result in enumerate(graph.relu_results)}
    pending = {value: start}
    for i in range(value, 0, -1):
        if i not in pending:
            continue
        node, rows = graph.nodes[i - 1], pending.pop(i)
        if isinstance(node.op, Relu):
            rows = at_relu(rows, places[i])
        elif not isinstance(node.op, Add):
            sizes, shape = rows.values.shape[:2], graph.shape_of(node.inputs[0])
            flat, corner = node.op.transpose(rows.values.flatten(0, 1), shape, rows.corner)
            rows = Rows(flat.unflatten(0, sizes), corner)
        for j in node.inputs:
            pending[j] = sum_rows(pending[j], rows) if j in pending else rows
    return pending[0]


def _through_relu(rows: Rows, relaxed: Relaxation, layers: int) -> tuple[Rows, Tensor]:
    lower, more, loss, more_loss, apart = relaxed.under(rows)
    if apart is not None:
        # The products below are summed over a window, and then over the layers of ReLUs.
        terms = math.prod(rows.values.shape[2:]) + layers
        apart = apart + gamma(terms, loss.dtype) * (loss.abs() + more_loss.abs() + apart)
        loss, more_loss = loss - apart, more_loss + 2 * apart
    negative = rows.values.clamp(max=0)
    given = dot(rows.values, loss) + dot(negative, more_loss)
    return Rows(torch.addcmul(rows.values * lower, negative, more), rows.corner), given


def dot(rows: Tensor, vectors: Tensor) -> Tensor:
    """Inner products (batch, rows) of rows with one vector per image (batch, 1, ...) or per row (batch, rows, ...)."""
    rows, vectors = rows.flatten(2), vectors.flatten(2)
    if vectors.shape[1] == 1:
        return torch.bmm(rows, vectors.mT).squeeze(2)
    return torch.linalg.vecdot(rows, vectors)


def concretise(rows: Rows, radius: Tensor) -> Tensor:
    """<radius, |a|> per row, for a radius (batch, *input_shape)."""
    return dot(rows.values.abs(), window(radius[:, None], rows.corner, rows.values))


def whole(rows: Rows, shape: tuple[int, ...]) -> Tensor:
    """Coefficients over the whole map."""
    values, (top, left) = rows.values, rows.corner
    if values.shape[2:] == shape:
        return values
    bottom, right = shape[1] - top - values.shape[-2], shape[2] - left - values.shape[-1]
    return F.pad(values, (left, right, top, bottom))


def sum_rows(one: Rows, two: Rows) -> Rows:
    """Sum of rows over one value, on the smallest window that holds both."""
    if one.corner == two.corner and one.values.shape[2:] == two.values.shape[2:]:
        return Rows(one.values + two.values, one.corner)
    top, left = (min(a, b) for a, b in zip(one.corner, two.corner, strict=True))
    bottom, right = (max(r.corner[axis] + r.values.shape[3 + axis] for r in (one, two)) for axis in (0, 1))
    shape = (one.values.shape[2], bottom - top, right - left)
    parts = [whole(Rows(r.values, (r.corner[0] - top, r.corner[1] - left)), shape) for r in (one, two)]
    return Rows(parts[0] + parts[1], (top, left))


def footprint(graph: Graph, value: int, size: tuple[int, ...] = ()) -> int:
    """Numbers that one row over a window of `size` of a value holds on its way back; a vector has no size."""
    sizes = {value: size}
    total = 0
    for i in range(value, -1, -1):
        if i not in sizes:
            continue
        channels, *extent = graph.shape_of(i)
        height_width = tuple(map(min, sizes[i], extent))
        total += channels * math.prod(height_width)
        for j in graph.nodes[i - 1].inputs if i else ():
            before = _size_before(graph.nodes[i - 1].op, graph.shape_of(j), height_width)
            sizes[j] = tuple(map(max, before, sizes.get(j, before)))
    return total


def _size_before(op: Operation, shape: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(op, Conv):
        return op.reach((size[0], size[1]))
    return shape[1:] if isinstance(op, Flatten) else size
