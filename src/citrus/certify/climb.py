"""The ascent behind the joint refinement: projected Adam on slopes and multipliers of a batch of subsets."""

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds.slopes import COMPACT, Adam
from citrus.bounds.substitution import Rows, Triangle, substitute, whole
from citrus.networks.operations import Graph

OPTIMISM = 3.0
"""A subset is given up when this many times the progress that can still be expected would not prove it."""


@dataclass(frozen=True)
class Climb:
    """How to climb: `rate` times `decay` per step; progress is measured over `window` steps (0: never give up)."""

    iterations: int
    rate: float
    decay: float
    window: int
    tolerance: float
    end: float = float("inf")
    """A point in time (perf_counter): the step after it is the last."""


@dataclass(frozen=True)
class Members:
    """The members of a batch of subsets, one after another; nothing carries a gradient."""

    graph: Graph
    spec: Tensor  # (member, 1, class)
    base: Tensor  # (member,): the margins at delta = 0
    triangles: tuple[Triangle, ...]
    subset: Tensor  # (member,): the number of its subset, ascending from 0
    eps: float

    def select(self, keep: Tensor) -> tuple["Members", Tensor]:
        """The subsets `keep` (subset,) marks, and the numbers their members had."""
        where = keep[self.subset].nonzero()[:, 0]
        triangles = tuple(
            Triangle(*(t[where] for t in (p.decided, p.exact, p.upper, p.intercept, p.z))) for p in self.triangles
        )
        renumbered = (keep.long().cumsum(0) - 1)[self.subset[where]]
        part = replace(self, spec=self.spec[where], base=self.base[where], triangles=triangles, subset=renumbered)
        return part, where

    def evaluate(self, slopes: list[Tensor], lambdas: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """g of each subset, and the size of the numbers it is made of, sum lambda (|b| + eps |a|_1)."""
        relaxed = [t.with_slope(s) for t, s in zip(self.triangles, slopes, strict=True)]
        rows, given = substitute(self.graph, len(self.graph.nodes), Rows(self.spec), relaxed)
        a, b = whole(rows, self.graph.input_shape).flatten(1), self.base + given[:, 0]
        mixed = a.new_zeros(count, a.shape[1]).index_add(0, self.subset, lambdas[:, None] * a)
        offset = b.new_zeros(count).index_add(0, self.subset, lambdas * b)
        with torch.no_grad():
            size = b.new_zeros(count).index_add(0, self.subset, lambdas * (b.abs() + self.eps * a.abs().sum(1)))
        return offset - self.eps * mixed.abs().sum(1), size


@dataclass
class Summit:
    """The best value of each subset, with the slopes (member, 1, *neurons) and lambdas (member,) that gave it."""

    value: Tensor
    slopes: list[Tensor]
    lambdas: Tensor
    steps: Tensor  # (subset,): taken by each

    def update(self, where: "_Where", value: Tensor, slopes: list[Tensor], lambdas: Tensor) -> None:
        """Keep what is better, of subsets that are still going."""
        better = where.going & (value > self.value[where.subsets])
        risen = better[where.owner].nonzero()[:, 0]
        self.value[where.subsets[better]] = value[better]
        self.lambdas[where.members[risen]] = lambdas[risen]
        for kept, slope in zip(self.slopes, slopes, strict=True):
            kept[where.members[risen]] = slope[risen]


@dataclass
class _Where:
    """What is left of the batch, by the numbers it had at the start."""

    subsets: Tensor
    members: Tensor
    owner: Tensor  # (member,): its subset among those left
    going: Tensor  # (subset,): False for subsets that only wait to be removed


@dataclass(frozen=True)
class Teams:
    """Subsets that are of use only together: once one is given up, its whole team is."""

    number: Tensor  # (subset,): of its team
    lost: set[int]

    def give_up(self, subsets: Tensor) -> None:
        self.lost.update(self.number[subsets].tolist())

    def stopped(self, subsets: Tensor) -> Tensor:
        return torch.isin(self.number[subsets], self.number.new_tensor(sorted(self.lost)))


def climb(members: Members, slopes: list[Tensor], weights: Tensor, how: Climb, teams: Teams | None = None) -> Summit:
    """Raise each subset until it is proved or given up, from these slopes and weights (lambda, not normalised)."""
    count = int(members.subset[-1]) + 1
    ones = torch.ones(count, dtype=torch.bool, device=weights.device)
    best = Summit(
        members.base.new_full((count,), -torch.inf),
        [s.clone() for s in slopes],
        normalised(weights, members.subset, count),
        ones.long() - 1,
    )
    where = _Where(ones.nonzero()[:, 0], torch.arange(len(weights), device=weights.device), members.subset, ones)
    adam = Adam([*(s.clone() for s in slopes), weights.clone()])
    history: list[Tensor] = []
    for step in range(how.iterations + 1):
        last = step == how.iterations or time.perf_counter() > how.end
        with torch.set_grad_enabled(not last):
            *own, weights = adam.track(not last)
            lambdas = normalised(weights, members.subset, len(where.subsets))
            value, size = members.evaluate(own, lambdas, len(where.subsets))
        best.update(where, value.detach(), [s.detach() for s in own], lambdas.detach())
        best.steps[where.subsets[where.going]] = step
        history.append(best.value.clone())
        proved = best.value[where.subsets] > 2 * how.tolerance * size
        hopeless = ~proved & hopeless_after(history, how.window)[where.subsets]
        where.going = where.going & ~proved & ~hopeless
        if teams is not None:
            teams.give_up(where.subsets[hopeless])
            where.going = where.going & ~teams.stopped(where.subsets)
        if last or not where.going.any():
            break
        adam.step(value, where.going, how.rate * how.decay**step)
        if where.going.float().mean() < COMPACT:
            members, stay = members.select(where.going)
            where = _Where(where.subsets[where.going], where.members[stay], members.subset, where.going[where.going])
            adam.select(stay)
    return best


def normalised(weights: Tensor, subset: Tensor, count: int) -> Tensor:
    """Multipliers on the simplex of each subset. The small number keeps a subset whose weights all fell to 0."""
    weights = weights + 1e-6
    return weights / weights.new_zeros(count).index_add(0, subset, weights)[subset]


def hopeless_after(history: list[Tensor], window: int) -> Tensor:
    """Subsets that will not be proved at the rate they rise.

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
