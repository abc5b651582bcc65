"""The search for slopes: projected Adam on a batch of independent tasks, the best iterate of each row kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from citrus.bounds.interval import Box
from citrus.bounds.linear import LinearSettings
from citrus.bounds.refine import Problem, affine_path, refine, select_box
from citrus.bounds.substitution import Rows, Triangle, adaptive_slopes, concretise, dot, relax_all, substitute, triangle
from citrus.inputs import check_limits

COMPACT = 0.8
"""Finished tasks are removed once fewer than this share is left: removing copies everything."""


@dataclass(frozen=True)
class AlphaSettings:
    """How to optimise slopes."""

    iterations: int = 20
    rate: float = 0.2
    """Adam's learning rate, for slopes in [0, 1]."""
    decay: float = 0.98
    """The rate is multiplied by this after each step."""
    inner_layers: int = 0
    """The boxes of this many last ReLU layers are optimised too, for the sake of the rows: slow, no gradient."""
    linear: LinearSettings = field(default_factory=LinearSettings)
    """How the CROWN bounds it starts from are computed."""

    def __post_init__(self) -> None:
        limits = {"iterations": "[0, inf)", "rate": "(0, inf)", "decay": "(0, 1]", "inner_layers": "[0, inf)"}
        check_limits(self, limits)


@dataclass(frozen=True)
class Task:
    """Rows of a batch of images to be raised above zero, given the boxes of the ReLUs; nothing carries a gradient."""

    problem: Problem
    spec: Tensor
    boxes: tuple[Box, ...]
    live: Tensor
    """False for rows that only fill up the batch, (batch, rows)."""

    def select(self, index: Tensor) -> "Task":
        boxes = tuple(select_box(b, index) for b in self.boxes)
        return Task(self.problem.select(index), self.spec[index], boxes, self.live[index])


@dataclass
class BestSlopes:
    """The best bound of each row, the slopes (batch, rows, *neurons) that gave it, and the tightest boxes met."""

    lower: Tensor
    slopes: list[Tensor]
    boxes: list[Box]

    def update(self, at: Tensor, lower: Tensor, slopes: list[Tensor], boxes: list[Box] | None) -> None:
        """Keep what is better, for tasks `at`."""
        image, row = (lower > self.lower[at]).nonzero(as_tuple=True)
        self.lower[at[image], row] = lower[image, row]
        for kept, slope in zip(self.slopes, slopes, strict=True):
            kept[at[image], row] = slope[image, row]
        for kept_box, box in zip(self.boxes, boxes or (), strict=False):
            low = torch.maximum(kept_box.lower[at], box.lower)
            high = torch.minimum(kept_box.upper[at], box.upper)
            kept_box.centre[at], kept_box.radius[at] = (low + high) / 2, ((high - low) / 2).clamp(min=0)


def ascend_slopes(task: Task, how: AlphaSettings) -> BestSlopes:
    """Raise each task's rows; a task is over when all its live rows are proved."""
    starts = start_slopes(task.boxes, task.spec.shape[1])
    best = BestSlopes(
        torch.full_like(task.spec[..., 0], -torch.inf),
        [s.clone() for s in starts],
        [Box(b.centre.clone(), b.radius.clone()) for b in task.boxes] if how.inner_layers else [],
    )
    inner = _inner_starts(task, how.inner_layers)
    adam = Adam([s.clone() for s in starts] + [s for pair in inner.values() for side in pair for s in side])
    at = torch.arange(len(task.spec), device=task.spec.device)
    triangles = _triangles(task)
    for step in range(how.iterations + 1):
        with torch.set_grad_enabled(step < how.iterations):
            lower, boxes = _evaluate(task, triangles, adam.track(step < how.iterations), inner)
        values = [v.detach() for v in adam.values]
        best.update(at, lower.detach(), values[: len(starts)], boxes)
        open_rows = task.live & ~(best.lower[at] > 0)
        going = open_rows.any(1)
        if step == how.iterations or not going.any():
            break
        adam.step(lower, open_rows, how.rate * how.decay**step)
        if going.float().mean() < COMPACT:
            keep = going.nonzero()[:, 0]
            task, at = task.select(keep), at[keep]
            adam.select(keep)
            triangles = _triangles(task)
    return best


def start_slopes(boxes: Sequence[Box], rows: int) -> list[Tensor]:
    """The usual slopes of each ReLU, the same for all rows: (batch, rows, *neurons)."""
    return [adaptive_slopes(box)[:, None].expand(-1, rows, *box.centre.shape[1:]) for box in boxes]


class Adam:
    """Adam whose batch can lose elements on the way; values stay in [0, 1]."""

    def __init__(self, values: list[Tensor]) -> None:
        self.values = values
        self.first = [torch.zeros_like(v) for v in values]
        self.second = [torch.zeros_like(v) for v in values]
        self.steps = 0

    def track(self, gradient: bool) -> list[Tensor]:
        self.values = [v.detach().requires_grad_(gradient) for v in self.values]
        return self.values

    def step(self, lower: Tensor, wanted: Tensor, rate: float) -> None:
        """One step up the sum of the wanted bounds."""
        gradients = torch.autograd.grad(lower, self.values, wanted.to(lower.dtype), allow_unused=True)
        self.steps += 1
        scale = rate / (1 - 0.9**self.steps)
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            self.first[i].lerp_(gradient, 0.1)
            self.second[i].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            root = (self.second[i] / (1 - 0.999**self.steps)).sqrt_().add_(1e-12)
            self.values[i] = self.values[i].detach().addcdiv(self.first[i], root, value=scale).clamp_(0, 1)

    def select(self, index: Tensor) -> None:
        self.values = [v.detach()[index] for v in self.values]
        self.first = [v[index] for v in self.first]
        self.second = [v[index] for v in self.second]


def _triangles(task: Task) -> list[Triangle]:
    places = task.problem.graph.relu_inputs
    return [triangle(b, task.problem.at_centre[i]) for b, i in zip(task.boxes, places, strict=True)]


Inner = dict[int, tuple[list[Tensor], list[Tensor]]]
"""By place of a ReLU: the slopes of the ReLUs before it, for its lower and for its upper bounds."""


def _inner_starts(task: Task, layers: int) -> Inner:
    graph = task.problem.graph
    places = graph.relu_inputs
    starts = [adaptive_slopes(box) for box in task.boxes]
    last = [i for i in range(len(places)) if i >= len(places) - layers and affine_path(graph, places[i]) is None]
    return {i: ([s.clone() for s in starts[:i]], [s.clone() for s in starts[:i]]) for i in last}


def _evaluate(
    task: Task, triangles: list[Triangle], values: list[Tensor], inner: Inner
) -> tuple[Tensor, list[Box] | None]:
    """Lower bounds (batch, rows) at the given slopes, and the inner boxes if they are optimised too."""
    problem, graph = task.problem, task.problem.graph
    count = len(task.boxes)
    boxes = None
    if inner:
        boxes = _inner_boxes(task, values[count:], inner)
        relaxed = relax_all(graph, boxes, values[:count], problem.at_centre)
        boxes = [b.detach() for b in boxes]
    else:
        relaxed = [t.with_slope(v) for t, v in zip(triangles, values, strict=True)]
    rows, given = substitute(graph, len(graph.nodes), Rows(task.spec), relaxed)
    b = dot(task.spec, problem.at_centre[-1][:, None]) + given
    return b - concretise(rows, problem.radius), boxes


def _inner_boxes(task: Task, values: list[Tensor], inner: Inner) -> list[Box]:
    """Boxes of the last layers with slopes of their own; never wider than the task's."""
    graph = task.problem.graph
    places = graph.relu_inputs
    boxes: list[Box] = []
    for i, box in enumerate(task.boxes):
        if i in inner:
            sides = [relax_all(graph, boxes, values[k * i : (k + 1) * i], task.problem.at_centre) for k in (0, 1)]
            values = values[2 * i :]
            box = _better(refine(task.problem, places[i], box, sides, intersect=False), box)
        boxes.append(box)
    return boxes


def _better(new: Box, old: Box) -> Box:
    """The better of two bounds on each side. A tie, as at the start, goes to the one that has a gradient."""
    slack = 1e-5 * old.radius
    low = torch.where(new.lower >= old.lower - slack, new.lower, old.lower)
    high = torch.where(new.upper <= old.upper + slack, new.upper, old.upper)
    return Box((low + high) / 2, ((high - low) / 2).clamp(min=0))
