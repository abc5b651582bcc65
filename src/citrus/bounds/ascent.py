"""The search for slopes: projected Adam on the slopes of many planes at once, with or without multipliers.

A *set* has one or more members. A member is a row of an image; its lower slopes give a plane a . delta + b under it
(substitution.py). For multipliers lambda on the simplex

    g = sum lambda b - <radius, |sum lambda a|>

is a lower bound of the largest row of the set over all delta of the box, and slopes and multipliers climb together.
With one member lambda is 1 and g its lower bound: that is all `alpha` needs. Sets of several images that share delta
are what `citrus.certify.refine` proves. Every iterate is sound, so the best one of each set is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds.interval import Box
from citrus.bounds.substitution import Rows, Triangle, substitute, triangles, whole
from citrus.inputs import check_limits
from citrus.networks.kernels import searching
from citrus.networks.operations import Graph

OPTIMISM = 3.0
"""A set is given up when this many times the progress that can still be expected would not prove it."""


@dataclass(frozen=True)
class ClimbSettings:
    """How to climb, and when to stop."""

    iterations: int = 20
    rate: float = 0.2
    """Adam's learning rate, for slopes in [0, 1]."""
    decay: float = 0.98
    """The rate is multiplied by this after each step."""
    window: int = 0
    """Progress is measured over this many steps; a set that would not be proved at three times the progress it can
    still expect is given up. 0 never gives up."""
    tolerance: float = 0.0
    """A set climbs on until its value exceeds twice this share of sum lambda (|b| + <radius, |a|>): what is proved is
    found out afterwards, with all rounding in it, and a value next to 0 might be lost."""

    def __post_init__(self) -> None:
        limits = {"iterations": "[0, inf)", "rate": "(0, inf)", "decay": "(0, 1]", "window": "[0, inf)"}
        check_limits(self, limits | {"tolerance": "[0, 1)"})


@dataclass(frozen=True)
class Members:
    """The members of a batch of sets, one after another; nothing carries a gradient."""

    graph: Graph
    spec: Tensor  # (member, 1, class)
    base: Tensor  # (member,): the rows at delta = 0
    triangles: list[Triangle]
    radius: Tensor  # (set, pixel)
    owner: Tensor  # (member,): the number of its set, ascending from 0

    @staticmethod
    def of(
        graph: Graph, at_centre: Sequence[Tensor], spec: Tensor, boxes: Sequence[Box], radius: Tensor, owner: Tensor
    ) -> "Members":
        """From rows `spec` (member, class), and each member's values at the centre and boxes that enter the ReLUs."""
        base = torch.linalg.vecdot(spec, at_centre[-1])
        return Members(graph, spec[:, None], base, triangles(graph, boxes, at_centre), radius.flatten(1), owner)

    def select(self, keep: Tensor) -> tuple["Members", Tensor]:
        """The sets that `keep` (set,) marks, and the numbers their members had."""
        where = keep[self.owner].nonzero()[:, 0]
        part = replace(
            self,
            spec=self.spec[where],
            base=self.base[where],
            triangles=[triangle.of_rows(where) for triangle in self.triangles],
            radius=self.radius[keep],
            owner=(keep.long().cumsum(0) - 1)[self.owner[where]],
        )
        return part, where

    def sums(self, values: Tensor) -> Tensor:
        """Of (member, ...) over the members of each set."""
        return values.new_zeros(len(self.radius), *values.shape[1:]).index_add(0, self.owner, values)

    def normalised(self, weights: Tensor) -> Tensor:
        """Multipliers on the simplex of each set. The small number keeps a set whose weights all fell to 0."""
        weights = weights + 1e-6
        return weights / self.sums(weights)[self.owner]

    def planes(self, slopes: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The plane under each member that its slopes give: a (member, pixel) and b (member,)."""
        relaxed = [triangle.relax(slope) for triangle, slope in zip(self.triangles, slopes, strict=True)]
        rows, given = substitute(self.graph, len(self.graph.nodes), Rows(self.spec), relaxed)
        return whole(rows, self.graph.input_shape).flatten(1), self.base + given[:, 0]

    def value(self, a: Tensor, b: Tensor, lambdas: Tensor) -> Tensor:
        """g of each set."""
        mixed = self.sums(lambdas[:, None] * a).abs()
        return self.sums(lambdas * b) - torch.linalg.vecdot(mixed, self.radius)

    def size(self, a: Tensor, b: Tensor, lambdas: Tensor) -> Tensor:
        """The size of the numbers that g is made of, sum lambda (|b| + <radius, |a|>)."""
        return self.sums(lambdas * (b.abs() + torch.linalg.vecdot(a.abs(), self.radius[self.owner])))


@dataclass
class Highest:
    """The best value of each set, with the slopes (member, 1, *neurons) and lambdas (member,) that gave it."""

    value: Tensor
    slopes: list[Tensor]
    lambdas: Tensor
    steps: Tensor  # (set,): taken by each


Watch = Callable[[Tensor, Tensor], Tensor]
"""Hears after each step the numbers of the sets that took it, and which of them are hopeless; says which must stop."""


@searching()
def climb(
    members: Members,
    slopes: Sequence[Tensor],
    weights: Tensor,
    how: ClimbSettings,
    watch: Watch = lambda sets, hopeless: torch.zeros_like(hopeless),
) -> Highest:
    """Raise each set until it is proved or given up, from these slopes and weights (lambda, not normalised)."""
    sets, places = (torch.arange(len(t), device=weights.device) for t in (members.radius, weights))
    best = Highest(
        value=members.base.new_full(sets.shape, -torch.inf),
        slopes=[s.clone() for s in slopes],
        lambdas=members.normalised(weights),
        steps=torch.zeros_like(sets),
    )
    adam = Adam([*slopes, weights])
    history: list[Tensor] = []
    for step in range(how.iterations + 1):
        last = step == how.iterations
        with torch.set_grad_enabled(not last):
            *own, weights = adam.track(not last)
            lambdas = members.normalised(weights)
            a, b = members.planes(own)
            value = members.value(a, b, lambdas)
        with torch.no_grad():
            better = value > best.value[sets]
            risen = better[members.owner].nonzero()[:, 0]
            best.value[sets[better]], best.lambdas[places[risen]] = value[better], lambdas[risen]
            for kept, slope in zip(best.slopes, own, strict=True):
                kept[places[risen]] = slope[risen]
            proved = best.value[sets] > 0
            if proved.any():
                proved = best.value[sets] > 2 * how.tolerance * members.size(a, b, lambdas)
        best.steps[sets] = step
        history.append(best.value.clone())
        hopeless = ~proved & hopeless_after(history, how.window)[sets]
        going = ~(proved | hopeless | watch(sets, hopeless))
        if last or not going.any():
            break
        adam.step(value, going, how.rate * how.decay**step)
        if not going.all():
            members, stay = members.select(going)
            sets, places = sets[going], places[stay]
            adam.select(stay)
    return best


def hopeless_after(history: list[Tensor], window: int) -> Tensor:
    """Sets that will not be proved at the rate they rise, given the best values after each step.

    Progress d over a window, after d' over the one before, leaves d q / (1 - q) with q = d / d' if it shrinks like
    that for ever.
    """
    now = history[-1]
    if not window or len(history) <= 2 * window:
        return ~(now > -torch.inf) if window else torch.zeros_like(now, dtype=torch.bool)
    middle, first = history[-1 - window], history[-1 - 2 * window]
    recent, before = now - middle, middle - first
    ratio = (recent / before.clamp(min=1e-30)).clamp(0, 0.95)
    return ~(now + OPTIMISM * recent * ratio / (1 - ratio) > 0)


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

    def step(self, value: Tensor, wanted: Tensor, rate: float) -> None:
        """One step up the sum of the wanted values."""
        gradients = torch.autograd.grad(value, self.values, wanted.to(value.dtype), allow_unused=True)
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
