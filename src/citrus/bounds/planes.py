"""Planes under the margins: what backward substitution gives, and their minimum over the box.

    planes = lower_planes(graph, centre, radius, spec, boxes, slopes)
    lower = planes.lower(radius)

All that is rounded on the way is in the planes (deviations.py). Where nothing is proved, in training, it is left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from citrus.bounds.deviations import Deviations
from citrus.bounds.interval import Box
from citrus.bounds.rounding import gamma, less, radius_above
from citrus.bounds.substitution import (
    Relaxation,
    Rows,
    Slopes,
    Triangle,
    concretise,
    dot,
    rows_of,
    substitute,
    triangles,
    whole,
)
from citrus.errors import CitrusError
from citrus.networks.kernels import exact
from citrus.networks.operations import Graph


@dataclass(frozen=True)
class Planes:
    """Lower planes in pixel units: value(centre + delta) >= <a, delta> + b for every delta of the box."""

    a: Tensor
    """Slopes, (batch, rows, *input_shape)."""
    b: Tensor
    """Values at delta = 0, (batch, rows)."""

    def __getitem__(self, index: Any) -> "Planes":
        """The planes of some images."""
        return Planes(self.a[index], self.b[index])

    @exact
    def lower(self, radius: Tensor | float) -> Tensor:
        """The minimum over the box, b - <radius, |a|>, rounded down: (batch, rows)."""
        if isinstance(radius, float | int):
            radius = radius_above(radius, self.a[:1, 0])
        return lowest(self.b, Rows(self.a), radius.expand_as(self.a[:, 0]))

    def training_lower(self, radius: Tensor) -> Tensor:
        """The same as it is computed, in the precision that torch is set to: where nothing is proved."""
        return self.b - concretise(Rows(self.a), radius.expand_as(self.a[:, 0]))


@exact
def lower_planes(
    graph: Graph,
    centre: Tensor,
    radius: Tensor,
    spec: Tensor | None,
    boxes: Sequence[Box],
    slopes: Slopes | None = None,
) -> Planes:
    """Sound lower planes of spec @ network(centre + delta) for all |delta| <= radius for which each ReLU's input is in
    its box.

    `spec` is (batch, rows, classes), one row per image if only one combination is wanted; None means the class scores.
    `boxes` holds the box entering each ReLU. `slopes` in [0, 1] are those of the lower lines of undecided ReLUs.
    """
    at_centre = [value.to(centre.dtype) for value in graph.double().values(centre.double())]
    deviations = Deviations(graph, at_centre, radius).follow(boxes)
    around = triangles(graph, boxes, at_centre, deviations.apart)
    spec = rows_of(spec, graph, centre)
    rows, given = substitute(graph, len(graph.nodes), Rows(spec), _relaxed(around, boxes, slopes))
    return Planes(whole(rows, graph.input_shape), added(rows_at_centre(spec, deviations), given))


def training_planes(
    graph: Graph, centre: Tensor, spec: Tensor | None, boxes: Sequence[Box], slopes: Slopes | None = None
) -> Planes:
    """`lower_planes` but for rounding, in the precision that torch is set to: for training, where nothing is proved."""
    at_centre = graph.values(centre)
    spec = rows_of(spec, graph, centre)
    relaxed = _relaxed(triangles(graph, boxes, at_centre), boxes, slopes)
    rows, given = substitute(graph, len(graph.nodes), Rows(spec), relaxed)
    return Planes(whole(rows, graph.input_shape), dot(spec, at_centre[-1][:, None]) + given)


def _relaxed(around: Sequence[Triangle], boxes: Sequence[Box], slopes: Slopes | None) -> list[Relaxation]:
    if slopes is None:
        return [triangle.relax() for triangle in around]
    _check_slopes(boxes, slopes)
    # Slopes outside [0, 1] would not be sound.
    return [triangle.relax(slope.clamp(0, 1)) for triangle, slope in zip(around, slopes, strict=True)]


def rows_at_centre(rows: Tensor, deviations: Deviations) -> Tensor:
    """Rows over the network's result at its centre, less all that may be wrong with it but for ReLUs: (batch, rows)."""
    scores, error = deviations.at_centre[-1][:, None], deviations.error[-1][:, None]
    size, terms = rows.abs(), math.prod(rows.shape[2:])
    held = dot(size, error) * (1 + gamma(terms, rows.dtype)) + deviations.least[:, None]
    return less(dot(rows, scores), dot(size, scores.abs()), terms) - held


def added(first: Tensor, second: Tensor) -> Tensor:
    """The sum of two lower bounds, rounded down."""
    total = first + second
    return less(total, total.abs(), 0)


def lowest(b: Tensor, rows: Rows, radius: Tensor) -> Tensor:
    """b - <radius, |a|> for rows over the input, rounded down."""
    reach = concretise(rows, radius)
    return less(b - reach, b.abs() + reach, math.prod(rows.values.shape[2:]))


def _check_slopes(boxes: Sequence[Box], slopes: Slopes) -> None:
    if len(slopes) != len(boxes):
        raise CitrusError(f"The network has {len(boxes)} ReLU layers, but slopes were given for {len(slopes)}.")
    for i, (box, slope) in enumerate(zip(boxes, slopes, strict=True)):
        if slope.shape != box.centre.shape and slope.shape[:1] + slope.shape[2:] != box.centre.shape:
            raise CitrusError(
                f"Slopes of ReLU {i} have shape {tuple(slope.shape)}, but its inputs have {tuple(box.centre.shape)}."
            )
