"""Backward substitution: from linear functions of a value inside the network to planes over the input.

    planes = lower_planes(graph, centre, spec, boxes, slopes)
    lower = planes.lower(radius)

This one function is the core of CROWN, of optimised slopes and of the joint refinement: given the boxes that enter each
ReLU, any slopes in [0, 1] give sound planes, and the result is differentiable in everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.bounds.interval import Box
from citrus.errors import CitrusError
from citrus.networks.operations import Add, Conv, Corner, Graph, Node, Relu, window
from citrus.networks.precision import exact

Slopes = Sequence[Tensor]
"""One tensor per ReLU: (batch, *neurons), shared by all rows of an image, or (batch, rows, *neurons)."""


@dataclass(frozen=True)
class Planes:
    """Lower planes in pixel units: value(centre + delta) >= <a, delta> + b for every delta of the box."""

    a: Tensor
    """Slopes, (batch, rows, *input_shape)."""
    b: Tensor
    """Values at delta = 0, (batch, rows)."""

    def lower(self, radius: Tensor | float) -> Tensor:
        """The minimum over the box, b - <radius, |a|>: (batch, rows)."""
        if isinstance(radius, float | int):
            return self.b - radius * self.a.abs().flatten(2).sum(2)
        return self.b - dot(self.a.abs(), radius.expand_as(self.a[:, 0])[:, None])


@dataclass(frozen=True)
class Rows:
    """Linear functions of one value: coefficients (batch, rows, *window), zero outside the window at `corner`."""

    values: Tensor
    corner: Corner = (0, 0)


def adaptive_slopes(box: Box) -> Tensor:
    """The usual choice of lower slope, 1 if u > -l else 0: the smaller of the two triangles (no gradient)."""
    return (box.upper > -box.lower).to(box.centre.dtype)


@exact
def lower_planes(
    graph: Graph, centre: Tensor, spec: Tensor | None, boxes: Sequence[Box], slopes: Slopes | None = None
) -> Planes:
    """Sound lower planes of spec @ network(centre + delta) for all delta for which each ReLU's input is in its box.

    `spec` is (batch, rows, classes), one row per image if only one combination is wanted; None means the class scores.
    `boxes` holds the box entering each ReLU. `slopes` in [0, 1] are those of the lower lines of undecided ReLUs.
    """
    return training_planes(graph, centre, spec, boxes, slopes)


def training_planes(
    graph: Graph, centre: Tensor, spec: Tensor | None, boxes: Sequence[Box], slopes: Slopes | None = None
) -> Planes:
    """`lower_planes` in the precision that torch is set to: what training uses, where nothing is proved."""
    check_slopes(boxes, slopes)
    at_centre = graph.values(centre)
    spec = rows_of(spec, graph, centre)
    relaxed = relax_all(graph, boxes, slopes, at_centre)
    rows, given = substitute(graph, len(graph.nodes), Rows(spec), relaxed)
    b = dot(spec, at_centre[-1][:, None]) + given
    return Planes(whole(rows, graph.input_shape), b)


def rows_of(spec: Tensor | None, graph: Graph, centre: Tensor) -> Tensor:
    """The specification, or a row for each class score where none is given."""
    if spec is not None:
        return spec
    return torch.eye(graph.classes, dtype=centre.dtype, device=centre.device).expand(len(centre), -1, -1)


def check_slopes(boxes: Sequence[Box], slopes: Slopes | None) -> None:
    """Refuse slopes that do not fit the boxes."""
    if slopes is None:
        return
    if len(slopes) != len(boxes):
        raise CitrusError(f"The network has {len(boxes)} ReLU layers, but slopes were given for {len(slopes)}.")
    for i, (box, slope) in enumerate(zip(boxes, slopes, strict=True)):
        if slope.shape != box.centre.shape and slope.shape[:1] + slope.shape[2:] != box.centre.shape:
            raise CitrusError(
                f"Slopes of ReLU {i} have shape {tuple(slope.shape)}, but its inputs have {tuple(box.centre.shape)}."
            )


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

    def part(self, images: slice, rows: slice) -> "Relaxation":
        """The part for some images and some rows."""
        return Relaxation(*(t[images][:, rows if t.shape[1] > 1 else slice(None)] for t in self))


def relax_all(
    graph: Graph, boxes: Sequence[Box], slopes: Slopes | None, at_centre: Sequence[Tensor]
) -> list[Relaxation]:
    """Relaxations of the first len(boxes) ReLUs."""
    places = graph.relu_inputs
    return [relax(box, None if slopes is None else slopes[i], at_centre[places[i]]) for i, box in enumerate(boxes)]


def relax(box: Box, slope: Tensor | None, z: Tensor) -> Relaxation:
    """Both lines. Slopes outside [0, 1] would not be sound, so they are clamped."""
    return triangle(box, z).with_slope(adaptive_slopes(box) if slope is None else slope.clamp(0, 1))


@dataclass(frozen=True)
class Triangle:
    """What the relaxation of a layer of ReLUs needs besides the lower slopes; fields are (batch, 1, *neurons)."""

    decided: Tensor
    exact: Tensor
    """The slope of decided ReLUs: 1 if always on, else 0."""
    upper: Tensor
    intercept: Tensor
    z: Tensor
    """The ReLU's argument at the centre."""

    def with_slope(self, slope: Tensor) -> Relaxation:
        if slope.dim() < self.z.dim():
            slope = slope[:, None]
        lower = torch.where(self.decided, self.exact, slope)
        more = self.upper - lower
        return Relaxation(lower, more, lower * self.z - self.z.relu(), more * self.z + self.intercept)


def triangle(box: Box, z: Tensor) -> Triangle:
    """The triangle relaxation of ReLUs whose arguments lie in a box."""
    return Triangle(*(t[:, None] for t in (*upper_line(box), z)))


def upper_line(box: Box) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which ReLUs are decided and their slope then, and slope and intercept of the line above every ReLU.

    A NaN box counts as undecided and spoils every row that touches it.
    """
    lower, upper = box.lower, box.upper
    off = upper <= 0
    on = (lower >= 0) & ~off
    decided = on | off
    exact = on.to(lower.dtype)
    slope = torch.where(decided, exact, upper / torch.where(decided, 1.0, upper - lower))
    return decided, exact, slope, torch.where(decided, 0.0, -lower * slope)


def substitute(graph: Graph, value: int, start: Rows, relaxed: Sequence[Relaxation]) -> tuple[Rows, Tensor]:
    """Carry lower bounds of `start` @ value back to the input: (rows over the input, what the ReLUs give away).

    At a ReLU a positive coefficient takes the lower line and a negative one the upper line, so that with P the rows
    over its result and z its argument, P relu(z) >= Q z + const. Written around the centre's z*, the bound at delta = 0
    is the value there plus  sum (P- upper* + P+ lower*)  of the lines' errors at z*: decided ReLUs add exactly nothing.
    """
    given = start.values.new_zeros(start.values.shape[:2])

    def at_relu(rows: Rows, place: int) -> Rows:
        nonlocal given
        rows, loss = _through_relu(rows, relaxed[place])
        given = given + loss
        return rows

    return walk_back(graph, value, start, at_relu), given


def walk_back(graph: Graph, value: int, start: Rows, at_relu: Callable[[Rows, int], Rows]) -> Rows:
    """Rows over the input from rows over a value; `at_relu` takes the rows over a ReLU's result and its place."""
    pending = {value: start}
    place = sum(isinstance(node.op, Relu) for node in graph.nodes[:value])
    for i in range(value, 0, -1):
        node = graph.nodes[i - 1]
        place -= isinstance(node.op, Relu)
        rows = pending.pop(i, None)
        if rows is None:
            continue
        if isinstance(node.op, Relu):
            rows = at_relu(rows, place)
        elif not isinstance(node.op, Add):
            sizes, shape = rows.values.shape[:2], graph.shape_of(node.inputs[0])
            flat, corner = node.op.transpose(rows.values.flatten(0, 1), shape, rows.corner)
            rows = Rows(flat.unflatten(0, sizes), corner)
        for j in node.inputs:
            pending[j] = sum_rows(pending[j], rows) if j in pending else rows
    return pending[0]


def _through_relu(rows: Rows, relaxed: Relaxation) -> tuple[Rows, Tensor]:
    lower, more, loss, more_loss = (window(t, rows.corner, rows.values) for t in relaxed)
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


def footprint(graph: Graph, value: int, size: tuple[int, int]) -> int:
    """Numbers that one row over a window of `size` of a value holds on its way back, over all values."""
    sizes = {value: size}
    total = 0
    for i in range(value, -1, -1):
        if i not in sizes:
            continue
        shape = graph.shape_of(i)
        here = tuple(min(a, b) for a, b in zip(sizes[i], shape[1:], strict=False))
        total += shape[0] * (here[0] * here[1] if here else 1)
        if i:
            node = graph.nodes[i - 1]
            for j in node.inputs:
                before = _size_before(node, graph.shape_of(j), here)
                sizes[j] = (max(before[0], sizes.get(j, (0, 0))[0]), max(before[1], sizes.get(j, (0, 0))[1]))
    return total


def _size_before(node: Node, shape: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, int]:
    if isinstance(node.op, Conv):
        return node.op.reach((size[0], size[1]))
    if len(shape) == 3 and len(size) < 2:  # a vector that was a map
        return shape[1], shape[2]
    return (size[0], size[1]) if len(size) == 2 else (0, 0)
