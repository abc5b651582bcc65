"""Joint proofs: the slopes of all members of a set and its multipliers lambda, raised together.

    results = prove_sets(Instance(graph, images, labels, boxes, eps), [((0, 3), (4, 7)), ((1, 2), (2, 8), (5, 0))])
    cuts = [result.core for result in results if result.proved]

Each member of a set of choices (image i, wrong label j) has lower slopes of its own, which give a plane
a_i . delta + b_i under its margin (bounds/substitution.py). Any slopes in [0, 1] and any lambda in the simplex with
g(lambda) > 0 on these planes prove the set (search/planes.py). With the boxes of the ReLUs held fixed, the maximum over
both is the value of the linear program in which every member has the triangle relaxation of every layer and all share
one delta: what RaVeN solves as a program and RACoon (Banerjee and Singh, 2024) approaches by a few steps on few sets.
Here every set that decides a count climbs until it is proved or stops paying, all of them in one batch
(bounds/ascent.py). Tightening boxes in turn (tightening.py) goes beyond that program.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from citrus.bounds.ascent import ClimbSettings, Members, climb, hopeless_after
from citrus.bounds.chunks import MemoryLimit, map_in_chunks
from citrus.bounds.interval import Box
from citrus.bounds.planes import Planes, lower_planes
from citrus.bounds.rounding import radius_above
from citrus.bounds.substitution import adaptive_slopes, footprint
from citrus.certify.clock import Clock, SharedTime
from citrus.certify.refine.tightening import Assumption, NeuronPlanes, Violated, neuron_planes, tighten
from citrus.certify.search.planes import Choice, without_lightest
from citrus.networks.operations import Graph

Subset = tuple[Choice, ...]
Starts = Mapping[Choice, Sequence[Tensor]]
"""Slopes (*neurons) of each ReLU by choice: where members start that the mapping knows."""


@dataclass(frozen=True)
class JointSettings(ClimbSettings):
    """How to prove a set, and which sets to ask for (rounds.py)."""

    iterations: int = 100
    window: int = 10
    tolerance: float = 1e-5
    assume: int = 0
    """Rounds in which boxes are tightened under the assumption that all members are violated (tightening.py). Proofs
    that need them carry them."""
    memory: int | None = None  # bytes that one chunk of work may take; None chooses by device
    sets: int = 4  # critical sets that a group is asked for in the first round; more from round to round
    singles: bool = False
    """Before the first round, try to prove each open choice alone: one choice less rules out the most sets."""
    rounds: int = 200


STRONGEST = JointSettings(iterations=60, assume=8, singles=True)
"""With proofs by contradiction, each choice alone first: in our trials more and faster than anything without them."""


@dataclass(frozen=True)
class Instance:
    """Images (of all groups) with the box that enters each ReLU when an image is perturbed by up to eps."""

    graph: Graph
    images: Tensor
    labels: Tensor
    boxes: tuple[Box, ...]
    eps: float
    kept: dict[int, NeuronPlanes] = field(default_factory=dict, repr=False, compare=False)
    """Planes of undecided neurons by image, once they were asked for."""

    def neurons(self, image: int) -> NeuronPlanes:
        if image not in self.kept:
            boxes = [box[image, None] for box in self.boxes]
            self.kept[image] = neuron_planes(self.graph, self.images[image, None], self.radius, boxes)
        return self.kept[image]

    @property
    def radius(self) -> Tensor:
        """eps as one row of pixels, no less than it is."""
        return radius_above(self.eps, self.images)


@dataclass(frozen=True)
class JointResult:
    """The best that was found for a set; sound whether it is proved or not."""

    choices: Subset
    value: float  # g in float64 on the planes and lambdas below, less its rounding error
    core: Subset  # the choices the proof needs: no delta violates all of these. Empty if nothing is proved
    lambdas: Tensor  # (member,) float64, sums to 1
    slopes: tuple[Tensor, ...]  # (member, *neurons) of each ReLU
    a: Tensor  # (member, pixel) float64
    b: Tensor  # (member,) float64
    steps: int
    assumptions: tuple[Assumption, ...] = ()
    """Rounds of tightening before the last climb. If there are any, the planes hold only at deltas that violate all
    choices: a proof by contradiction, of which no plane may be used elsewhere."""

    @property
    def proved(self) -> bool:
        return bool(self.core)

    @property
    def proof(self) -> Tensor:
        """lambdas of the core alone, (member,): zero for choices that are not needed."""
        needed = [choice in self.core for choice in self.choices]
        return self.lambdas * torch.tensor(needed, dtype=self.lambdas.dtype, device=self.lambdas.device)


def prove_sets(
    instance: Instance,
    sets: Sequence[Subset],
    settings: JointSettings = JointSettings(),  # noqa: B008 - frozen
    starts: Starts | None = None,
    groups: Sequence[int] | None = None,
    clocks: SharedTime | None = None,
) -> list[JointResult]:
    """Try to prove each set of choices, (position in instance.images, wrong label), and return the best of each.

    `groups` holds the number of each set's group, whose clock pays for it; without it all sets are one group.
    """
    graph = instance.graph
    refinement = _Refinement(instance, settings, clocks or SharedTime([Clock()]), starts or {})
    mean = sum(len(subset) for subset in sets) / max(1, len(sets))
    each = int(12 * mean * footprint(graph, len(graph.nodes)) * instance.images.element_size())
    attempts = [_Attempt(subset, group) for subset, group in zip(sets, groups or [0] * len(sets), strict=True)]
    return map_in_chunks(attempts, each, MemoryLimit.of(settings.memory, instance.images.device), refinement.run)


@dataclass
class _Attempt:
    """A set on its way."""

    choices: Subset
    group: int
    results: list[JointResult] = field(default_factory=list)  # after each climb
    assumptions: tuple[Assumption, ...] = ()
    tightened: list[Box] = field(default_factory=list)  # of each member, after the last assumption


class _Refinement:
    """One call of `prove_sets`."""

    def __init__(self, instance: Instance, settings: JointSettings, clocks: SharedTime, starts: Starts) -> None:
        self.instance, self.settings, self.clocks, self.starts = instance, settings, clocks, starts
        self.graph, self.double = instance.graph, instance.graph.double()

    def run(self, attempts: Sequence[_Attempt]) -> list[JointResult]:
        """Climb, then in turn tighten and climb, as long as it pays."""
        rounds = self.settings.assume if self.instance.boxes else 0
        going = attempts
        for number in range(rounds + 1):
            self._climb(going, final=rounds == 0)
            going = self._promising(going) if number < rounds else []
            if not going:
                break
            self._tighten(going)
        return [attempt.results[-1] for attempt in attempts]

    def _tensor(self, values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), device=self.instance.images.device)

    @torch.no_grad()
    def _climb(self, attempts: Sequence[_Attempt], final: bool) -> None:
        """Every proof is evaluated here in float64, on planes made in float64: what the climb believed is no proof.

        If the climb is `final`, a set that is given up gives up its group.
        """
        image = self._tensor(i for attempt in attempts for i, _ in attempt.choices)
        boxes = [box[image] for box in self.instance.boxes]
        tightened = [box for attempt in attempts for box in attempt.tightened]
        if tightened:
            boxes[-1] = Box(torch.stack([b.centre for b in tightened]), torch.stack([b.radius for b in tightened]))
        groups = self._tensor(attempt.group for attempt in attempts)
        sizes = self._tensor(len(attempt.choices) for attempt in attempts)
        members = self._members(attempts, image, boxes, sizes)

        def watch(sets: Tensor, hopeless: Tensor) -> Tensor:
            self.clocks.charge(groups[sets].repeat_interleave(sizes[sets]))
            if final:
                self.clocks.give_up(groups[sets[hopeless]])
            return self.clocks.stopped(groups[sets])

        found = climb(members, *self._start(attempts, boxes), self.settings, watch)
        planes = lower_planes(
            self.double,
            self.instance.images[image].double(),
            self.instance.radius.double(),
            members.spec.double(),
            [Box(b.centre.double(), b.radius.double()) for b in boxes],
            [s.double() for s in found.slopes],
        )
        end = 0
        for attempt, steps in zip(attempts, found.steps.tolist(), strict=True):
            own = slice(end, end := end + len(attempt.choices))
            slopes = tuple(s[own, 0] for s in found.slopes)
            attempt.results.append(self._result(attempt, planes[own], found.lambdas[own], slopes, steps))
        self.clocks.charge(groups.repeat_interleave(sizes))

    def _members(self, attempts: Sequence[_Attempt], image: Tensor, boxes: list[Box], sizes: Tensor) -> Members:
        """One row e_y - e_j per choice."""
        label = self._tensor(j for attempt in attempts for _, j in attempt.choices)
        identity = torch.eye(self.graph.classes).to(self.instance.images)
        spec = identity[self.instance.labels[image]] - identity[label]
        which, place = image.unique(return_inverse=True)
        at_centre = [value[place] for value in self.graph.values(self.instance.images[which])]
        radius = self.instance.radius.expand(len(attempts), *self.graph.input_shape)
        owner = torch.arange(len(attempts), device=image.device).repeat_interleave(sizes)
        return Members.of(self.graph, at_centre, spec, boxes, radius, owner)

    def _start(self, attempts: Sequence[_Attempt], boxes: list[Box]) -> tuple[list[Tensor], Tensor]:
        """Where the last climb ended; else the slopes given, else the adaptive ones, and equal weights."""
        before = [attempt.results[-1] for attempt in attempts if attempt.results]
        if before:
            slopes = [torch.cat(parts)[:, None] for parts in zip(*(result.slopes for result in before), strict=True)]
            return slopes, torch.cat([result.lambdas for result in before]).to(self.instance.images.dtype)
        slopes = [adaptive_slopes(box)[:, None] for box in boxes]
        choices = [choice for attempt in attempts for choice in attempt.choices]
        for place, choice in enumerate(choices):
            for layer, given in enumerate(self.starts.get(choice, ())):
                slopes[layer][place, 0] = given
        return slopes, self.instance.images.new_full((len(choices),), 0.5)

    def _result(
        self, attempt: _Attempt, planes: Planes, lambdas: Tensor, slopes: tuple[Tensor, ...], steps: int
    ) -> JointResult:
        """What these planes and lambdas prove: of all choices, or without those of the smallest weight.

        A proof by contradiction needs all of them, because each was assumed to be violated.
        """
        a, b, count = planes.a.flatten(1), planes.b[:, 0], len(attempt.choices)
        share = lambdas.double() / lambdas.double().sum()
        rank = share.argsort().argsort()
        most = 1 if attempt.assumptions else count
        left, holds = without_lightest(a, b, self.instance.eps, share, rank, most)
        drop = max((r for r, proved in enumerate(holds) if proved), default=count)
        core = tuple(choice for choice, r in zip(attempt.choices, rank.tolist(), strict=True) if r >= drop)
        steps += attempt.results[-1].steps if attempt.results else 0
        return JointResult(attempt.choices, float(left[0]), core, share, slopes, a, b, steps, attempt.assumptions)

    def _promising(self, attempts: Sequence[_Attempt]) -> list[_Attempt]:
        """The sets that another round may prove. A round that brings less than a twentieth of what is missing is the
        last, and so is one after which progress shrinks too fast."""
        values = zip(*((result.value for result in attempt.results) for attempt in attempts), strict=True)
        history = [self._tensor(after) for after in values]
        proved = self._tensor(attempt.results[-1].proved for attempt in attempts)
        hopeless = hopeless_after(history, 1)
        if len(history) > 1:
            hopeless = hopeless | ~(history[-1] - history[-2] > -history[-1] / 20)
        groups = self._tensor(attempt.group for attempt in attempts)
        self.clocks.give_up(groups[hopeless & ~proved])
        stay = ~proved & ~hopeless & ~self.clocks.stopped(groups)
        return [attempt for attempt, going in zip(attempts, stay.tolist(), strict=True) if going]

    def _tighten(self, attempts: Sequence[_Attempt]) -> None:
        """Tighten the boxes of the last ReLUs of every member, assuming that all choices of its set are violated."""
        last, members = self.instance.boxes[-1], list[Violated]()
        for attempt in attempts:
            a, b = attempt.results[-1].a.to(last.centre), attempt.results[-1].b.to(last.centre)
            images = [image for image, _ in attempt.choices]
            boxes = attempt.tightened or [last[image] for image in images]
            members += [Violated(box, self.instance.neurons(i), a, b) for box, i in zip(boxes, images, strict=True)]
        device = last.centre.device  # a CPU's caches hold the planes of one member
        budget = MemoryLimit(1) if device.type == "cpu" else MemoryLimit.of(self.settings.memory, device)
        found = iter(tighten(members, self.instance.eps, budget))
        for attempt in attempts:
            attempt.tightened, multipliers = map(list, zip(*islice(found, len(attempt.choices)), strict=True))
            used = tuple(self.instance.neurons(image).index for image, _ in attempt.choices)
            attempt.assumptions += (Assumption(attempt.results[-1].slopes, used, tuple(multipliers)),)
        self.clocks.charge(self._tensor(attempt.group for attempt in attempts for _ in attempt.choices))
