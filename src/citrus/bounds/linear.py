"""Linear bounds (CROWN) by backward substitution over a network's operations.

    bounds = crown(graph, centre, radius, margin_rows(labels, graph.classes))
    certified = (bounds.lower > 0).all(1)

Zhang et al., "Efficient Neural Network Robustness Certification with General Activation Functions" (2018). Batched over
images and rows, and differentiable in the weights, the centre and the radius.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from citrus.bounds.chunks import in_chunks
from citrus.bounds.deviations import Deviations
from citrus.bounds.interval import Bounds, Box, elided, map_rows, through
from citrus.bounds.planes import Planes, added, lowest, rows_at_centre
from citrus.bounds.refine import Problem, affine_path, refine
from citrus.bounds.rounding import below, gamma
from citrus.bounds.substitution import Rows, footprint, rows_of, substitute, triangles, whole
from citrus.errors import CitrusError
from citrus.networks.kernels import exact
from citrus.networks.operations import Graph, Linear, Relu

InnerBoxes = Literal["crown", "early", "interval"]


@dataclass(frozen=True)
class LinearSettings:
    """How to compute linear bounds. The defaults are the strongest."""

    intermediate: InnerBoxes = "crown"
    """Boxes of the inner layers by CROWN (only for neurons that cheaper bounds leave undecided), by intervals, or
    `early`: those that enter the first two ReLU layers by CROWN, where it costs little, the others by intervals."""
    intersect: bool = True
    """Take the better of interval and linear bound, for inner layers and for the result."""
    upper: bool = True
    """Also bound the rows from above; without it `upper` is the interval bound."""
    planes: bool = False
    """Keep the planes of the lower bound: rows x pixels numbers per image."""
    memory: int | None = None
    """Bytes that one chunk of work may take; None chooses by device."""

    def __post_init__(self) -> None:
        if self.intermediate not in get_args(InnerBoxes):
            raise CitrusError(f"Inner boxes are made by crown, early or interval, got {self.intermediate!r}.")

    def refines(self, layer: int) -> bool:
        """Whether the box that enters a ReLU layer, counted from 0, is made by CROWN."""
        return self.intermediate == "crown" or (self.intermediate == "early" and layer < 2)


@dataclass(frozen=True)
class LinearBounds(Bounds):
    """Bounds and, if asked for, the planes behind `lower`: margin(centre + delta) >= <a, delta> + b."""

    by_planes: Tensor
    """Of each row the lower bound that its plane gives."""
    lower_planes: Planes | None = None
    slopes: tuple[Tensor, ...] = ()
    """Of each ReLU (batch, rows, *neurons), where they were optimised: `lower_planes` gives the planes again."""


@exact
def crown(
    graph: Graph,
    centre: Tensor,
    radius: Tensor | float,
    spec: Tensor | None = None,
    settings: LinearSettings = LinearSettings(),  # noqa: B008 - frozen
) -> LinearBounds:
    """Bound spec @ network(x) for all x with |x - centre| <= radius, pixel by pixel, by linear functions of x.

    `spec` is (batch, rows, classes); None means the class scores themselves. With `intersect` the planes may be weaker
    than `lower`, where the interval bound was better.
    """
    problem = Problem.of(graph, centre, radius, settings.memory)
    deviations = Deviations(graph, problem.at_centre, problem.radius)
    boxes, output = _inner_boxes(problem, spec, settings, deviations)
    return _bound_rows(problem, spec, boxes, output.grown(gamma(0, torch.float64)), settings, deviations)


def _inner_boxes(
    problem: Problem, spec: Tensor | None, settings: LinearSettings, deviations: Deviations
) -> tuple[tuple[Box, ...], Box]:
    """The box entering each ReLU, and the interval bound of the rows that follows from them.

    One walk forward: each box starts as the image of the boxes before it and is then refined by substitution.
    """
    graph, arithmetic, dtype = problem.graph, problem.graph.arithmetic, problem.centre.dtype
    values, entering, boxes = [problem.box], list[Box](), list[Box]()
    for place, node in enumerate(problem.wide.nodes, start=1):
        i = node.inputs[0]
        if isinstance(node.op, Linear) and place == len(graph.nodes) and spec is not None:
            return tuple(boxes), elided(node.op, spec.double(), values[i], arithmetic)
        if isinstance(node.op, Relu):
            if settings.refines(len(boxes)) and affine_path(graph, i) is None:
                values[i] = _refined(problem, i, values[i], boxes, deviations.follow(boxes), settings)
            boxes.append(values[i].around(dtype))
        values.append(through(node.op, [values[j] for j in node.inputs], 1.0, entering, arithmetic))
    return tuple(boxes), values[-1] if spec is None else map_rows(spec.double(), values[-1], arithmetic)


def _refined(
    problem: Problem, value: int, box: Box, boxes: list[Box], deviations: Deviations, settings: LinearSettings
) -> Box:
    """The box of a value by substitution, given those that enter the ReLUs before it."""
    error = deviations.error[value] + deviations.least.view(-1, *[1] * (box.centre.dim() - 1))
    around = triangles(problem.graph, boxes, problem.at_centre, deviations.apart)
    return refine(problem, value, box, [triangle.relax() for triangle in around], error, settings.intersect)


def _bound_rows(
    problem: Problem,
    spec: Tensor | None,
    boxes: tuple[Box, ...],
    output: Box,
    settings: LinearSettings,
    deviations: Deviations,
) -> LinearBounds:
    """Bounds of the specification rows, given the boxes of the ReLUs and the interval bound `output` of the rows."""
    graph, centre = problem.graph, problem.centre
    wanted_rows = rows_of(spec, graph, centre)
    around = triangles(graph, boxes, problem.at_centre, deviations.follow(boxes).apart)
    relaxed = [triangle.relax() for triangle in around]
    signs = (1, -1) if settings.upper else (1,)
    at_centre = {sign: rows_at_centre(sign * wanted_rows, deviations) for sign in signs}

    def work(images: slice, rows: slice) -> tuple[Tensor, ...]:
        part = [r.of_images(images) for r in relaxed]
        results: list[Tensor] = []
        for sign in signs:
            start = Rows(sign * wanted_rows[images, rows])
            over_input, given = substitute(graph, len(graph.nodes), start, part)
            b = added(at_centre[sign][images, rows], given)
            results.append(lowest(b, over_input, problem.radius[images]))
            if settings.planes and sign == 1:
                results += [whole(over_input, graph.input_shape), b]
        return tuple(results)

    row_bytes = 3 * footprint(graph, len(graph.nodes)) * centre.element_size()
    lower, *rest = in_chunks((len(centre), wanted_rows.shape[1]), row_bytes, problem.budget, work)
    planes = Planes(rest[0], rest[1]) if settings.planes else None
    low, high = below(output.lower, centre.dtype), -below(-output.upper, centre.dtype)
    upper = -rest[-1] if settings.upper else high
    best = lower
    if settings.intersect:
        best, upper = torch.maximum(lower, low), torch.minimum(upper, high)
    return LinearBounds(best, upper, boxes, lower, planes)
