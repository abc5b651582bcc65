"""Linear bounds with optimised slopes (alpha-CROWN): gradient ascent on the lower slopes of undecided ReLUs.

    bounds = alpha(graph, centre, radius, margin_rows(labels, graph.classes), AlphaSettings(iterations=20))
    certified = (bounds.lower > 0).all(1)

Xu et al., "Fast and Complete" (2021). Only rows that CROWN leaves undecided are worked on, and a row drops out once it
is proved (ascent.py).
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from citrus.bounds.ascent import ClimbSettings, Members, climb
from citrus.bounds.chunks import in_chunks
from citrus.bounds.interval import Box
from citrus.bounds.linear import LinearBounds, LinearSettings, crown
from citrus.bounds.planes import Planes, lower_planes
from citrus.bounds.refine import Problem
from citrus.bounds.substitution import adaptive_slopes, footprint, rows_of
from citrus.networks.kernels import exact
from citrus.networks.operations import Graph


@dataclass(frozen=True)
class AlphaSettings(ClimbSettings):
    """How to optimise slopes."""

    linear: LinearSettings = field(default_factory=LinearSettings)
    """How the CROWN bounds it starts from are computed."""


@exact
def alpha(
    graph: Graph,
    centre: Tensor,
    radius: Tensor | float,
    spec: Tensor | None = None,
    settings: AlphaSettings = AlphaSettings(),  # noqa: B008 - frozen
    start: LinearBounds | None = None,
) -> LinearBounds:
    """Bound spec @ network(x) from below for all x with |x - centre| <= radius; `upper` is CROWN's.

    Differentiable as `crown` is, at the slopes found. `start` may give the result of `crown` for the same problem, so
    that it is not computed again.
    """
    problem = Problem.of(graph, centre, radius, settings.linear.memory)
    first = crown(graph, centre, radius, spec, settings.linear) if start is None else start
    spec, boxes, planes = rows_of(spec, graph, centre), first.pre_activations, first.lower_planes
    slopes = tuple(adaptive_slopes(box)[:, None].expand(-1, spec.shape[1], *box.centre.shape[1:]) for box in boxes)
    where = image, row = (~(first.lower > 0)).nonzero(as_tuple=True)
    if len(image) == 0 or not boxes:
        return replace(first, slopes=slopes)

    def work(pairs: slice, _: slice) -> tuple[Tensor, ...]:
        of, own = image[pairs], [box[image[pairs]] for box in boxes]
        rows = spec[of, row[pairs]][:, None]
        best = _best_slopes(problem, of, rows, own, settings)
        found = lower_planes(graph, centre[of], problem.radius[of], rows, own, best)
        lower = found.lower(problem.radius[of])
        return (lower, found.b, found.a, *best) if planes is not None else (lower, *best)

    row_bytes = 12 * footprint(graph, len(graph.nodes)) * spec.element_size()
    lower, *found = (t[:, 0] for t in in_chunks((len(image), 1), row_bytes, problem.budget, work))
    if planes is not None:
        planes = Planes(b=planes.b.index_put(where, found.pop(0)), a=planes.a.index_put(where, found.pop(0)))
    slopes = tuple(s.index_put(where, better) for s, better in zip(slopes, found, strict=True))
    best, by_planes = (t.index_put(where, torch.maximum(t[where], lower)) for t in (first.lower, first.by_planes))
    return LinearBounds(best, first.upper, boxes, by_planes, planes, slopes)


@torch.no_grad()
def _best_slopes(
    problem: Problem, image: Tensor, spec: Tensor, boxes: list[Box], settings: AlphaSettings
) -> list[Tensor]:
    """The best slopes (row, 1, *neurons) that the ascent meets, for one row of each of these images."""
    own, at_centre = torch.arange(len(image), device=image.device), [value[image] for value in problem.at_centre]
    members = Members.of(
        problem.graph.map(Tensor.detach), at_centre, spec[:, 0], boxes, problem.radius[image], owner=own
    )
    starts = [adaptive_slopes(box)[:, None] for box in boxes]
    return climb(members, starts, torch.ones_like(members.base), settings).slopes
