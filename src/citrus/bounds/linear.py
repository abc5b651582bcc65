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
from citrus.bounds.interval import Bounds, Box, map_rows, through
from citrus.bounds.refine import Problem, affine_path, refine
from citrus.bounds.substitution import Planes, Rows, concretise, dot, footprint, rows_of, substitute, triangles, whole
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
    boxes, output = _inner_boxes(problem, spec, settings)
    return _bound_rows(problem, spec, boxes, output, settings)


def _inner_boxes(problem: Problem, spec: Tensor | None, settings: LinearSettings) -> tuple[tuple[Box, ...], Box]:
    """The box entering each ReLU, and the interval bound of the rows that follows from them.

    One walk forward: each box starts as the image of the boxes before it and is then refined by substitution.
    """
    graph = problem.graph
    values = [Box(problem.centre, problem.radius)]
    boxes: list[Box] = []
    for place, node in enumerate(graph.nodes, start=1):
        i = node.inputs[0]
        if isinstance(node.op, Linear) and place == len(graph.nodes) and spec is not None:
            return tuple(boxes), map_rows(spec @ node.op.weight, values[i], spec @ node.op.bias)
        linear = isinstance(node.op, Relu) and settings.refines(len(boxes))
        if linear and affine_path(graph, i) is None:
            relaxed = [triangle.relax() for triangle in triangles(graph, boxes, problem.at_centre)]
            values[i] = refine(problem, i, values[i], relaxed, settings.intersect)
        values.append(through(node.op, [values[j] for j in node.inputs], 1.0, boxes))
    return tuple(boxes), values[-1] if spec is None else map_rows(spec, values[-1])


def _bound_rows(
    problem: Problem, spec: Tensor | None, boxes: tuple[Box, ...], output: Box, settings: LinearSettings
) -> LinearBounds:
    """Bounds of the specification rows, given the boxes of the ReLUs and the interval bound `output` of the rows."""
    graph, centre = problem.graph, problem.centre
    wanted_rows = rows_of(spec, graph, centre)
    relaxed = [triangle.relax() for triangle in triangles(graph, boxes, problem.at_centre)]
    signs = (1, -1) if settings.upper else (1,)

    def work(images: slice, rows: slice) -> tuple[Tensor, ...]:
        part = [r.of_images(images) for r in relaxed]
        wanted, scores = wanted_rows[images, rows], problem.at_centre[-1][images, None]
        results: list[Tensor] = []
        for sign in signs:
            over_input, given = substitute(graph, len(graph.nodes), Rows(sign * wanted), part)
            b = dot(sign * wanted, scores) + given
            results.append(b - concretise(over_input, problem.radius[images]))
            if settings.planes and sign == 1:
                results += [whole(over_input, graph.input_shape), b]
        return tuple(results)

    row_bytes = 3 * footprint(graph, len(graph.nodes)) * centre.element_size()
    lower, *rest = in_chunks((len(centre), wanted_rows.shape[1]), row_bytes, problem.budget, work)
    planes = Planes(rest[0], rest[1]) if settings.planes else None
    upper = -rest[-1] if settings.upper else output.upper
    if settings.intersect:
        lower, upper = torch.maximum(lower, output.lower), torch.minimum(upper, output.upper)
    return LinearBounds(lower, upper, boxes, planes)
