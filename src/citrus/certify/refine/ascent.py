"""The ascent behind the joint refinement: projected Adam on slopes and multipliers of a batch of sets."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds.slopes import COMPACT, Adam
from citrus.bounds.substitution import Rows, Triangle, substitute, whole
from citrus.certify.clock import SharedTime
from citrus.networks.operations import Graph

OPTIMISM = 3.0
"""A set is given up when this many times the progress that can still be expected would not prove it."""


@dataclass(frozen=True)
class JointSettings:
    """How to climb, and when to stop."""

    iterations: int = 100
    rate: float = 0.2  # Adam's learning rate, for slopes in [0, 1]
    decay: float = 0.98  # the rate is multiplied by this after each step
    window: int = 10
    """Progress is measured over this many steps; a set that would not be proved at three times the progress it can
    still expect is given up. 0 never gives up."""
    assume: int = 0
    """Rounds in which boxes are tightened under the assumption that all members are violated (tightening.py). Proofs
    that need them carry them."""
    tolerance: float = 1e-5
    """A proof must exceed this share of sum lambda (|b| + eps |a|_1), so that rounding in the boxes cannot make it."""
    memory: int | None = None  # bytes that one chunk of work may take; None chooses by device


@dataclass(frozen=True)
class Members:
    """The members of a batch of sets, one after another; nothing carries a gradient."""

    graph: Graph
    eps: float
    spec: Tensor  # (member, 1, class)
    base: Tensor  # (member,): the margins at delta = 0
    triangles: tuple[Triangle, ...]
    owner: Tensor  # (member,): the number of its set, ascending from 0
    group: Tensor  # (set,): the number of its group

    def select(self, keep: Tensor) -> tuple["Members", Tensor]:
        """The sets that `keep` (set,) marks, and the numbers their members had."""
        where = keep[self.owner].nonzero()[:, 0]
        triangles = tuple(
            Triangle(*(t[where] for t in (p.decided, p.exact, p.upper, p.intercept, p.z))) for p in self.triangles
        )
        part = replace(
            self,
            spec=self.spec[where],
            base=self.base[where],
            triangles=triangles,
            owner=(keep.long().cumsum(0) - 1)[self.owner[where]],
            group=self.group[keep],
        )
        return part, where

    def sums(self, values: Tensor) -> Tensor:
        """Of (member, ...) over the members of each set."""
        return values.new_zeros(len(self.group), *values.shape[1:]).index_add(0, self.owner, values)

    def evaluate(self, slopes: list[Tensor], lambdas: Tensor) -> tuple[Tensor, Tensor]:
        """g of each set, and the size of the numbers it is made of, sum lambda (|b| + eps |a|_1)."""
        relaxed = [t.with_slope(s) for t, s in zip(self.triangles, slopes, strict=True)]
        rows, given = substitute(self.graph, len(self.graph.nodes), Rows(self.spec), relaxed)
        a, b = whole(rows, self.graph.input_shape).flatten(1), self.base + given[:, 0]
        value = self.sums(lambdas * b) - self.eps * self.sums(lambdas[:, None] * a).abs().sum(1)
        with torch.no_grad():
            size = self.sums(lambdas * (b.abs() + self.eps * a.abs().sum(1)))
        return value, size

    def normalised(self, weights: Tensor) -> Tensor:
        """Multipliers on the simplex of each set. The small number keeps a set whose weights all fell to 0."""
        weights = weights + 1e-6
        return weights / self.sums(weights)[self.owner]


@dataclass
class Highest:
    """The best value of each set, with the slopes (member, 1, *neurons) and lambdas (member,) that gave it."""

    value: Tensor
    slopes: list[Tensor]
    lambdas: Tensor
    steps: Tensor  # (set,): taken by each

    def update(self, sets: Tensor, members: Tensor, value: Tensor, slopes: list[Tensor], lambdas: Tensor) -> None:
        """Put new values of some sets and of all their members, given by their numbers, in place of the old ones."""
        self.value[sets], self.lambdas[members] = value, lambdas
        for kept, slope in zip(self.slopes, slopes, strict=True):
            kept[members] = slope


def climb(
    members: Members, slopes: list[Tensor], weights: Tensor, how: JointSettings, clocks: SharedTime, final: bool
) -> Highest:
    """Raise each set until it is proved or given up, from these slopes and weights (lambda, not normalised).

    If the climb is `final`, a set that is given up gives up its group.
    """
    count = len(members.group)
    best = Highest(
        members.base.new_full((count,), -torch.inf),
        [s.clone() for s in slopes],
        members.normalised(weights),
        torch.zeros_like(members.group),
    )
    sets, places = torch.arange(count, device=weights.device), torch.arange(len(weights), device=weights.device)
    going = torch.ones_like(sets, dtype=torch.bool)
    adam = Adam([*(s.clone() for s in slopes), weights.clone()])
    history: list[Tensor] = []
    for step in range(how.iterations + 1):
        last = step == how.iterations
        with torch.set_grad_enabled(not last):
            *own, weights = adam.track(not last)
            lambdas = members.normalised(weights)
            value, size = members.evaluate(own, lambdas)
        better = going & (value.detach() > best.value[sets])
        risen = better[members.owner].nonzero()[:, 0]
        best.update(
            sets[better],
            places[risen],
            value.detach()[better],
            [s.detach()[risen] for s in own],
            lambdas.detach()[risen],
        )
        best.steps[sets[going]] = step
        history.append(best.value.clone())
        clocks.charge(members.group[members.owner[going[members.owner]]])
        proved = best.value[sets] > 2 * how.tolerance * size
        hopeless = ~proved & hopeless_after(history, how.window)[sets]
        if final:
            clocks.give_up(members.group[going & hopeless])
        going = going & ~proved & ~hopeless & ~clocks.stopped(members.group)
        if last or not going.any():
            break
        adam.step(value, going, how.rate * how.decay**step)
        if going.float().mean() < COMPACT:
            members, stay = members.select(going)
            sets, places, going = sets[going], places[stay], going[going]
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
