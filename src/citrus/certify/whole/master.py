"""The master problem of a group: all choices that its images leave open, in one dual, split where that pays.

    proof = solve_master(branching, choices, Limits(seconds=60.0))
    proof.lost      # at most so many of the open images fall to one perturbation

After a first solution every leaf that falls in the relaxation is split, and better planes are made where it falls,
round by round (front.py); vectors and multipliers are carried over (lowrank.py). The bound of every round is sound
(rigorous.py), so the best one is kept, and a clock may end the work at any time.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from citrus.certify.whole.choices import Known, OpenChoices
from citrus.certify.whole.dual import Multipliers, OpenPlanes
from citrus.certify.whole.front import Front
from citrus.certify.whole.leaves import Branching
from citrus.certify.whole.lowrank import LowRank
from citrus.certify.whole.rigorous import firmest

FIRST, LATER, AGAIN = 20, 25, 10
"""Updates of the multipliers: of the first problem, after a split, and from look to look as long as the bound falls."""
PROGRESS, SPLITS, LOOKS = 0.003, 3, 3
"""So many rounds of splits, or looks, must save this share of the images that are lost, or no more follow."""


@dataclass(frozen=True)
class Limits:
    """When to stop."""

    seconds: float = math.inf
    rounds: int = 4
    """Times that leaves are split."""
    memory: float = math.inf
    """Bytes that the problem may take."""


@dataclass(frozen=True)
class MasterProof:
    """At most `lost` of the open images are violated by one perturbation."""

    choices: OpenChoices
    bound: float
    front: Front
    problem: OpenPlanes
    multipliers: Multipliers
    curve: tuple[tuple[float, float], ...] = ()
    """Seconds, and the images that may be lost by then."""
    timed_out: bool = False

    @property
    def images(self) -> int:
        """Those that are open."""
        return len(self.choices.image.unique())

    @property
    def lost(self) -> int:
        return min(self.images, math.floor(min(self.bound, 1e9)))


Hears = Callable[[float, float, int], None]
"""Hears of every look at the bound: seconds, images that may be lost, and leaves."""


def solve_master(
    branching: Branching,
    choices: OpenChoices,
    limits: Limits,
    known: Known = Known(),  # noqa: B008 - frozen
    begin: tuple[Front, LowRank] | None = None,
    hears: Hears = lambda seconds, bound, leaves: None,
    keeps: Callable[[tuple[Front, LowRank]], None] = lambda state: None,
) -> MasterProof:
    """The best proof for all these choices within the limits. `keeps` is given every state that a later call may
    `begin` at."""
    rounds, facts = _Rounds(choices, limits, hears), known.about(choices)
    if begin is None:
        front = Front.first(branching, choices.leaves, choices.adaptive)
        begin = front, LowRank(front.problem(facts))
    rounds.advance(*begin, FIRST)
    keeps(begin)
    for _ in range(limits.rounds - begin[0].leaves.depth if branching.graph.neurons else 0):
        if rounds.over or not rounds.room_for_split(begin[0]) or not rounds.pay(SPLITS):
            break
        begin = begin[0].split(branching, begin[1], facts, lambda: rounds.over)
        rounds.advance(*begin, LATER)
        keeps(begin)
    rounds.bounds = [min(rounds.bounds)]
    while not rounds.over and rounds.pay(LOOKS):
        rounds.advance(*begin, AGAIN)
    return replace(rounds.best, curve=tuple(rounds.curve), timed_out=rounds.over)


class _Rounds:
    """What the rounds of a master problem share."""

    def __init__(self, choices: OpenChoices, limits: Limits, hears: Hears) -> None:
        self.choices, self.limits, self.hears = choices, limits, hears
        self.started = time.perf_counter()
        self.curve: list[tuple[float, float]] = []
        self.bounds: list[float] = []
        self.best: MasterProof

    @property
    def over(self) -> bool:
        return time.perf_counter() - self.started > self.limits.seconds

    def advance(self, front: Front, relaxed: LowRank, times: int) -> None:
        """Look at what is proved after so many updates of the multipliers."""
        relaxed.advance(times, lambda: self.over)
        multipliers, bound = firmest(relaxed.planes, relaxed.multipliers(), relaxed.marked)
        if not self.bounds or bound < self.best.bound:
            self.best = MasterProof(self.choices, bound, front, relaxed.planes, multipliers)
        seconds = time.perf_counter() - self.started
        self.bounds.append(bound)
        self.curve.append((seconds, min(self.best.bound, self.best.images)))
        self.hears(seconds, bound, len(front.leaves))

    def pay(self, patience: int) -> bool:
        """Whether something is left to prove, and the last looks, so many of them, have lowered the bound."""
        if not self.best.lost or len(self.bounds) <= patience:
            return bool(self.best.lost)
        before = min(self.bounds[:-patience])
        return before - min(self.bounds) > PROGRESS * before

    def room_for_split(self, front: Front) -> bool:
        """Whether twice as many leaves fit into memory: planes in two precisions, and matrices of leaves."""
        leaves, pixels = 2 * len(front.leaves), front.pool.a.shape[1]
        return bytes_of(leaves, len(front.pool) + leaves, pixels) <= self.limits.memory and bool(len(front.leaves))


def bytes_of(leaves: int, planes: int, pixels: int) -> int:
    """What a problem takes: its planes in two precisions and X twice, and six matrices of leaves, in float64."""
    return 8 * (pixels * (3 * planes // 2 + 2 * leaves) + 6 * leaves**2)
