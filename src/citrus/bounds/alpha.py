"""Linear bounds with optimised slopes (alpha-CROWN): gradient ascent on the lower slopes of undecided ReLUs.

    bounds = alpha(graph, centre, radius, margin_rows(labels, graph.classes), AlphaSettings(iterations=20))
    certified = (bounds.lower > 0).all(1)

Xu et al., "Fast and Complete" (2021). Every iterate is sound, so the best one per row is kept and the search may stop
at any time. Only rows that CROWN leaves undecided are worked on, and a row drops out once it is proved.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.bounds.chunks import in_chunks
from citrus.bounds.interval import Box
from citrus.bounds.linear import LinearBounds, crown, problem_of
from citrus.bounds.refine import Problem, select_box
from citrus.bounds.slopes import AlphaSettings, Task, ascend_slopes, start_slopes
from citrus.bounds.substitution import Planes, footprint, lower_planes, rows_of
from citrus.errors import CitrusError
from citrus.networks.operations import Graph
from citrus.networks.precision import exact


@dataclass(frozen=True)
class AlphaBounds(LinearBounds):
    """Bounds with the slopes of each ReLU, (batch, rows, *neurons): `lower_planes(..., slopes)` gives them again."""

    slopes: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class _Pairs:
    """Which rows of which images are worked on: task t is image[t] with rows row[t]; live is False for fillers."""

    image: Tensor
    row: Tensor
    live: Tensor


@exact
def alpha(
    graph: Graph,
    centre: Tensor,
    radius: Tensor | float,
    spec: Tensor | None = None,
    settings: AlphaSettings = AlphaSettings(),  # noqa: B008 - frozen
    start: LinearBounds | None = None,
) -> AlphaBounds:
    """Bound spec @ network(x) from below for all x with |x - centre| <= radius; `upper` is CROWN's.

    Differentiable as `crown` is, at the slopes found. `pre_activations` are the boxes the planes were made with.
    `start` may give the result of `crown` for the same problem, so that it is not computed again.
    """
    problem = problem_of(graph, centre, radius, settings.linear.memory)
    first = crown(graph, centre, radius, spec, settings.linear) if start is None else start
    if settings.inner_layers and first.lower.requires_grad:
        raise CitrusError("Optimised inner boxes carry no gradient: use inner_layers=0, or torch.no_grad().")
    spec, boxes = rows_of(spec, graph, centre), first.pre_activations
    slopes = tuple(start_slopes(boxes, spec.shape[1]))
    pairs = _pairs(~(first.lower > 0), one_by_one=not settings.inner_layers)
    if len(pairs.image) == 0 or not boxes:
        return AlphaBounds(first.lower, first.upper, boxes, first.lower_planes, slopes)
    found, boxes = _search(problem, spec, boxes, pairs, settings)
    where = (pairs.image[:, None].expand_as(pairs.row)[pairs.live], pairs.row[pairs.live])
    found = [s[pairs.live] for s in found]
    lower, planes = _conclude(problem, spec, boxes, where, found, first)
    slopes = tuple(s.index_put(where, f) for s, f in zip(slopes, found, strict=True))
    return AlphaBounds(lower, first.upper, boxes, planes, slopes)


def _pairs(undecided: Tensor, one_by_one: bool) -> _Pairs:
    """Undecided rows as tasks of their own, or gathered by image."""
    if one_by_one:
        image, row = undecided.nonzero(as_tuple=True)
        return _Pairs(image, row[:, None], torch.ones_like(row[:, None], dtype=torch.bool))
    image = undecided.any(1).nonzero()[:, 0]
    live, row = undecided[image].sort(dim=1, descending=True, stable=True)
    most = int(live.sum(1).max()) if len(image) else 0
    return _Pairs(image, row[:, :most], live[:, :most])


def _search(
    problem: Problem, spec: Tensor, boxes: tuple[Box, ...], pairs: _Pairs, settings: AlphaSettings
) -> tuple[list[Tensor], tuple[Box, ...]]:
    """Slopes (task, row, *neurons) for the pairs, and the boxes of all images, tighter where they were optimised."""
    graph, plain = problem.graph, problem.detach()
    fixed = [box.detach() for box in boxes]
    count = len(boxes)

    def work(tasks: slice, _: slice) -> tuple[Tensor, ...]:
        image, row = pairs.image[tasks], pairs.row[tasks]
        chosen = spec.detach()[image[:, None], row]
        own = tuple(select_box(b, image) for b in fixed)
        best = ascend_slopes(Task(plain.select(image), chosen, own, pairs.live[tasks]), settings)
        return (*best.slopes, *(t for b in best.boxes for t in (b.centre, b.radius)))

    row_bytes = 12 * footprint(graph, len(graph.nodes), (0, 0)) * spec.element_size() * pairs.row.shape[1]
    results = in_chunks((len(pairs.image), 1), row_bytes, problem.budget, work)
    slopes, tight = list(results[:count]), results[count:]
    if tight:
        parts = zip(boxes, tight[::2], tight[1::2], strict=True)
        boxes = tuple(
            Box(b.centre.index_put((pairs.image,), c), b.radius.index_put((pairs.image,), r)) for b, c, r in parts
        )
    return slopes, boxes


def _conclude(
    problem: Problem,
    spec: Tensor,
    boxes: tuple[Box, ...],
    where: tuple[Tensor, Tensor],
    slopes: list[Tensor],
    first: LinearBounds,
) -> tuple[Tensor, Planes | None]:
    """Bounds and planes with the pairs' new slopes put in, with gradients if the problem has them."""
    planes = first.lower_planes

    def work(pairs: slice, _: slice) -> tuple[Tensor, ...]:
        image, row = where[0][pairs], where[1][pairs]
        own = tuple(select_box(b, image) for b in boxes)
        chosen = [s[pairs] for s in slopes]
        found = lower_planes(problem.graph, problem.centre[image], spec[image, row][:, None], own, chosen)
        lower = found.lower(problem.radius[image])
        return (lower, found.a, found.b) if planes is not None else (lower,)

    row_bytes = 6 * footprint(problem.graph, len(problem.graph.nodes), (0, 0)) * spec.element_size()
    lower, *rest = in_chunks((len(where[0]), 1), row_bytes, problem.budget, work)
    if planes is not None:
        planes = Planes(planes.a.index_put(where, rest[0][:, 0]), planes.b.index_put(where, rest[1][:, 0]))
    return first.lower.index_put(where, torch.maximum(first.lower[where], lower[:, 0])), planes
