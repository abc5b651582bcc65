"""What joint refinement works on, and the course of it for one batch of subsets: climb, assume, climb again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from citrus.bounds.chunks import MemoryLimit
from citrus.bounds.interval import Box
from citrus.bounds.refine import select_box
from citrus.bounds.substitution import adaptive_slopes, lower_planes, triangle
from citrus.certify.assume import Assumption, Neurons, Violated, neurons_of, tighten
from citrus.certify.climb import Climb, Members, Summit, Teams, climb, hopeless_after
from citrus.certify.planes import Choice, dual_value
from citrus.errors import CitrusError
from citrus.networks.operations import Graph

Subset = tuple[Choice, ...]
Starts = Mapping[Choice, Sequence[Tensor]]
"""Slopes (*neurons) of each ReLU by choice: where members start that the mapping knows."""


@dataclass(frozen=True)
class JointSettings:
    """How to climb, and when to stop."""

    iterations: int = 100
    rate: float = 0.2
    """Adam's learning rate, for slopes in [0, 1]."""
    decay: float = 0.98
    """The rate is multiplied by this after each step."""
    window: int = 10
    """Progress is measured over this many steps; a subset that would not be proved at three times the progress it can
    still expect is given up. 0 never gives up."""
    assume: int = 0
    """Rounds in which boxes are tightened under the assumption that all members are violated (assume.py). Proofs that
    need them carry them."""
    tolerance: float = 1e-5
    """A proof must exceed this share of sum lambda (|b| + eps |a|_1), so that rounding in the boxes cannot make it."""
    seconds: float = float("inf")
    """For all subsets together: what is found by then is returned."""
    memory: int | None = None
    """Bytes that one chunk of work may take; None chooses by device."""

    def __post_init__(self) -> None:
        if min(self.iterations, self.window, self.assume) < 0 or not self.rate > 0 or not 0 < self.decay <= 1:
            raise CitrusError(
                f"Joint refinement needs iterations, window, assume >= 0, rate > 0 and 0 < decay <= 1, got {self}."
            )
        if not self.tolerance >= 0:
            raise CitrusError(f"The tolerance of a proof must not be negative, got {self.tolerance}.")


@dataclass(frozen=True)
class Instance:
    """Images (of all groups) with the box that enters each ReLU when an image is perturbed by up to eps."""

    graph: Graph
    images: Tensor
    labels: Tensor
    boxes: tuple[Box, ...]
    eps: float
    kept: dict[int, Neurons] = field(default_factory=dict, repr=False, compare=False)
    """Planes of undecided neurons by image, once they were asked for."""

    def neurons(self, image: int) -> Neurons:
        if image not in self.kept:
            boxes = [Box(x.centre[image, None], x.radius[image, None]) for x in self.boxes]
            self.kept[image] = neurons_of(self.graph, self.images[image, None], boxes)
        return self.kept[image]

    def __post_init__(self) -> None:
        if not 0 <= self.eps < float("inf"):
            raise CitrusError(f"eps must be a finite number >= 0, got {self.eps}.")
        if len(self.boxes) != len(self.graph.relu_inputs) or any(len(b.centre) != len(self.images) for b in self.boxes):
            raise CitrusError("An instance needs one box per ReLU of the network, each with a row for every image.")


@dataclass(frozen=True)
class JointResult:
    """The best that was found for a subset; sound whether it is proved or not."""

    choices: Subset
    value: float
    """g in float64 on the planes and lambdas below, less its rounding error."""
    proved: bool
    core: Subset
    """The choices the proof needs: no delta violates all of these. Empty if nothing is proved."""
    lambdas: Tensor  # (member,) float64, sums to 1
    slopes: tuple[Tensor, ...]  # (member, *neurons) of each ReLU
    a: Tensor  # (member, pixel) float64
    b: Tensor  # (member,) float64
    steps: int
    assumptions: tuple[Assumption, ...] = ()
    """Rounds of tightening before the last climb. If there are any, the planes hold only at deltas that violate all
    choices: a proof by contradiction, of which no plane may be used elsewhere."""

    @property
    def proof(self) -> Tensor:
        """lambdas of the core alone, (member,): zero for choices that are not needed."""
        needed = [choice in self.core for choice in self.choices]
        return self.lambdas * torch.tensor(needed, dtype=self.lambdas.dtype, device=self.lambdas.device)


@dataclass
class _Batch:
    """Some subsets with the state of their members, one after another."""

    subsets: list[Subset]
    number: Tensor  # (subset,): in the chunk
    image: Tensor  # (member,)
    boxes: list[Box]  # (member, ...)
    slopes: list[Tensor]  # (member, 1, *neurons)
    weights: Tensor  # (member,): lambda, not normalised

    @property
    def owner(self) -> Tensor:
        """(member,): its subset in this batch."""
        sizes = torch.tensor([len(subset) for subset in self.subsets], device=self.image.device)
        return torch.arange(len(sizes), device=self.image.device).repeat_interleave(sizes)

    @property
    def choices(self) -> list[Choice]:
        return [choice for subset in self.subsets for choice in subset]

    def members(self) -> list[slice]:
        """Of each subset."""
        ends = torch.tensor([len(subset) for subset in self.subsets]).cumsum(0).tolist()
        return [slice(end - len(subset), end) for subset, end in zip(self.subsets, ends, strict=True)]

    def select(self, keep: Tensor) -> "_Batch":
        where = keep[self.owner].nonzero()[:, 0]
        return _Batch(
            [subset for subset, stay in zip(self.subsets, keep.tolist(), strict=True) if stay],
            self.number[keep],
            self.image[where],
            [select_box(box, where) for box in self.boxes],
            [s[where] for s in self.slopes],
            self.weights[where],
        )


class Run:
    """One call of `refine_subsets`."""

    def __init__(self, instance: Instance, settings: JointSettings) -> None:
        self.instance, self.settings = instance, settings
        self.graph = instance.graph.map(Tensor.detach)
        self.double = self.graph.map(Tensor.double)
        end = time.perf_counter() + settings.seconds
        self.how = Climb(settings.iterations, settings.rate, settings.decay, settings.window, settings.tolerance, end)

    def refine(self, subsets: list[Subset], starts: Starts, teams: Teams | None) -> list[JointResult]:
        """Climb, then in turn assume and climb, as long as it pays."""
        rounds = self.settings.assume if self.instance.boxes else 0
        batch = self._batch(subsets, starts)
        steps = torch.zeros_like(batch.number)
        chains: list[tuple[Assumption, ...]] = [()] * len(subsets)
        results: dict[int, JointResult] = {}
        values: list[Tensor] = []
        while True:
            found = climb(self._members(batch), batch.slopes, batch.weights, self.how, None if rounds else teams)
            steps[batch.number] += found.steps
            results.update(self._results(batch, found, chains, steps))
            values.append(torch.tensor([results[n].value for n in range(len(subsets))], device=steps.device))
            if len(values) > rounds or time.perf_counter() > self.how.end:
                break
            keep = self._promising(batch, results, values, teams)
            if not keep.any():
                break
            batch.slopes, batch.weights = found.slopes, found.lambdas
            batch = batch.select(keep)
            self._assume(batch, results, chains)
        return [results[n] for n in range(len(subsets))]

    def _batch(self, subsets: list[Subset], starts: Starts) -> _Batch:
        """Members start from the slopes given, else from the adaptive ones, and from equal weights."""
        image = torch.tensor([i for subset in subsets for i, _ in subset], device=self.instance.images.device)
        boxes = [Box(b.centre[image].detach(), b.radius[image].detach()) for b in self.instance.boxes]
        slopes = [adaptive_slopes(box) for box in boxes]
        for place, choice in enumerate(choice for subset in subsets for choice in subset):
            for layer, given in enumerate(starts.get(choice, ())):
                slopes[layer][place] = given
        weights = torch.full_like(image, 0.5, dtype=self.instance.images.dtype)
        number = torch.arange(len(subsets), device=image.device)
        return _Batch(subsets, number, image, boxes, [s[:, None] for s in slopes], weights)

    def _spec(self, batch: _Batch) -> Tensor:
        """One row e_y - e_j per member: (member, 1, class)."""
        like = self.instance.images
        identity = torch.eye(self.graph.classes, dtype=like.dtype, device=like.device)
        label = torch.tensor([j for _, j in batch.choices], device=like.device)
        return (identity[self.instance.labels[batch.image]] - identity[label])[:, None]

    def _members(self, batch: _Batch) -> Members:
        which, place = batch.image.unique(return_inverse=True)
        spec = self._spec(batch)
        with torch.no_grad():
            at_centre = [value[place] for value in self.graph.values(self.instance.images[which])]
            reads = zip(batch.boxes, self.graph.relu_inputs, strict=True)
            triangles = tuple(triangle(box, at_centre[i]) for box, i in reads)
            base = torch.einsum("mc,mc->m", spec[:, 0], at_centre[-1])
        return Members(self.graph, spec, base, triangles, batch.owner, self.instance.eps)

    def _results(
        self, batch: _Batch, found: Summit, chains: list[tuple[Assumption, ...]], steps: Tensor
    ) -> dict[int, JointResult]:
        """Every proof is evaluated here in float64, on planes made in float64: what the climb believed is no proof."""
        eps, tolerance = self.instance.eps, self.settings.tolerance
        with torch.no_grad():
            planes = lower_planes(
                self.double,
                self.instance.images[batch.image].double(),
                self._spec(batch).double(),
                [Box(b.centre.double(), b.radius.double()) for b in batch.boxes],
                [s.double() for s in found.slopes],
            )
        results = {}
        for number, choices, own in zip(batch.number.tolist(), batch.subsets, batch.members(), strict=True):
            a, b = planes.a[own].flatten(1), planes.b[own, 0]
            share = found.lambdas[own].double() / found.lambdas[own].double().sum()
            # Row r of `trials` leaves out the r members of smallest weight: the proof may not need them. A proof by
            # contradiction needs all of them, because each was assumed to be violated.
            rank = share.argsort().argsort()
            trials = share * (rank >= torch.arange(1 if chains[number] else len(choices), device=rank.device)[:, None])
            value, rounding = dual_value(a, b, eps, trials)
            reach = b.abs() + eps * a.abs().sum(1)
            holds = (value - rounding > tolerance * (trials * reach).sum(1)).tolist()
            drop = max((r for r, proved in enumerate(holds) if proved), default=len(choices))
            core = tuple(choice for choice, r in zip(choices, rank.tolist(), strict=True) if r >= drop)
            slopes = tuple(s[own, 0] for s in found.slopes)
            left, taken = float(value[0] - rounding[0]), int(steps[number])
            results[number] = JointResult(
                *(choices, left, any(holds), core, share, slopes, a, b), steps=taken, assumptions=chains[number]
            )
        return results

    def _promising(
        self, batch: _Batch, results: dict[int, JointResult], values: list[Tensor], teams: Teams | None
    ) -> Tensor:
        """Subsets of the batch that another round may prove. A round that brings less than a twentieth of what is
        missing is the last, and so is one after which progress shrinks too fast."""
        at = batch.number
        proved = torch.tensor([results[n].proved for n in at.tolist()], device=at.device)
        hopeless = hopeless_after(values, 1)[at]
        if len(values) > 1:
            hopeless = hopeless | ~(values[-1] - values[-2] > -values[-1] / 20)[at]
        if teams is not None:
            teams.give_up(at[hopeless & ~proved])
            hopeless = hopeless | teams.stopped(at)
        return ~proved & ~hopeless

    def _assume(self, batch: _Batch, results: dict[int, JointResult], chains: list[tuple[Assumption, ...]]) -> None:
        """Tighten the boxes of the last ReLUs of every member, assuming that all choices of its subset are violated."""
        last, members = batch.boxes[-1], list[Violated]()
        for number, own in zip(batch.number.tolist(), batch.members(), strict=True):
            a, b = (t.to(last.centre) for t in (results[number].a, results[number].b))
            images = batch.image[own].tolist()
            members += [Violated(own.start + k, self.instance.neurons(image), a, b) for k, image in enumerate(images)]
        device = last.centre.device  # a CPU's caches hold the planes of one member
        budget = MemoryLimit(1) if device.type == "cpu" else MemoryLimit.of(self.settings.memory, device)
        found = tighten(last, members, self.instance.eps, self.settings.tolerance, budget)
        for number, own in zip(batch.number.tolist(), batch.members(), strict=True):
            used = tuple(m.neurons.index for m in members[own])
            chains[number] = (*chains[number], Assumption(results[number].slopes, used, tuple(found[own])))
