"""Joint refinement: the slopes of all members of a subset and its multipliers lambda, raised together.

    results = refine_subsets(Instance(graph, images, labels, boxes, eps), [((0, 3), (4, 7)), ((1, 2), (2, 8), (5, 0))])
    cuts = [result.core for result in results if result.proved]

For a subset S of choices (image i, wrong label j) each member has lower slopes alpha_i of its own, which give a plane
a_i . delta + b_i under its margin (bounds/substitution.py). Since delta is shared, S is not violable if

    g(alpha, lambda) = sum_i lambda_i b_i(alpha_i) - eps * || sum_i lambda_i a_i(alpha_i) ||_1 > 0

for any slopes in [0, 1] and any lambda in the simplex. With the boxes of the ReLUs held fixed, the maximum of g is the
value of the linear program in which every member has the triangle relaxation of every layer and all share one delta:
what RaVeN solves as a program and RACoon (Banerjee and Singh, 2024) approaches by a few steps on few subsets. Here
every subset that decides a count climbs until it is proved or stops paying, all of them in one batch: members are
tasks, and a sum over the tasks of a subset makes its value.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.bounds.chunks import Budget, in_chunks
from citrus.bounds.interval import Box
from citrus.bounds.refine import select_box
from citrus.bounds.substitution import (
    adaptive_slopes,
    footprint,
    lower_planes,
    points,
    relu_places,
    triangle,
)
from citrus.certify.climb import Climb, Members, climb
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
    tolerance: float = 1e-5
    """A proof must exceed this share of sum lambda (|b| + eps |a|_1), so that rounding in the boxes cannot make it."""
    seconds: float = float("inf")
    """For all subsets together: what is found by then is returned."""
    memory: int | None = None
    """Bytes that one chunk of work may take; None chooses by device."""

    def __post_init__(self) -> None:
        if self.iterations < 0 or self.window < 0 or not self.rate > 0 or not 0 < self.decay <= 1:
            raise CitrusError(f"Joint refinement needs iterations, window >= 0, rate > 0, 0 < decay <= 1, got {self}.")
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

    def __post_init__(self) -> None:
        if not 0 <= self.eps < float("inf"):
            raise CitrusError(f"eps must be a finite number >= 0, got {self.eps}.")
        if len(self.boxes) != len(relu_places(self.graph)) or any(
            len(b.centre) != len(self.images) for b in self.boxes
        ):
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

    @property
    def proof(self) -> Tensor:
        """lambdas of the core alone, (member,): zero for choices that are not needed."""
        needed = [choice in self.core for choice in self.choices]
        return self.lambdas * torch.tensor(needed, dtype=self.lambdas.dtype, device=self.lambdas.device)


def refine_subsets(
    instance: Instance,
    subsets: Sequence[Subset],
    settings: JointSettings = JointSettings(),  # noqa: B008 - frozen
    starts: Starts | None = None,
    teams: Sequence[int] | None = None,
) -> list[JointResult]:
    """Try to prove each subset of choices, (position in instance.images, wrong label), and return the best of each.

    Subsets of one team (a group's critical sets) are of use only if all of them are proved: once one is given up, the
    others of its team stop where they are. `teams` holds a number per subset.
    """
    subsets = [tuple((int(i), int(j)) for i, j in subset) for subset in subsets]
    _check(instance, subsets, teams)
    if not subsets:
        return []
    graph = instance.graph.map(Tensor.detach)
    double = graph.map(Tensor.double)
    lost: set[int] = set()
    end = time.perf_counter() + settings.seconds
    how = Climb(settings.iterations, settings.rate, settings.decay, settings.window, settings.tolerance, end)

    def work(chunk: slice, _: slice) -> tuple[Tensor, ...]:
        mine = subsets[chunk]
        team = None if teams is None else torch.tensor(teams[chunk], device=instance.images.device)
        choices = [choice for subset in mine for choice in subset]
        image = torch.tensor([i for i, _ in choices], device=instance.images.device)
        boxes = [select_box(box, image) for box in instance.boxes]
        spec = _spec(instance, choices)
        members = _members(graph, instance, image, spec, boxes, mine)
        found = climb(members, _starting(boxes, choices, starts), how, team, lost)
        planes = lower_planes(
            double,
            instance.images[image].detach().double(),
            spec.double(),
            [Box(b.centre.detach().double(), b.radius.detach().double()) for b in boxes],
            [s.double() for s in found.slopes],
        )
        return (found.lambdas, planes.a.flatten(1), planes.b[:, 0], found.steps, *(s[:, 0] for s in found.slopes))

    mean = sum(len(subset) for subset in subsets) / len(subsets)
    row_bytes = int(12 * mean * footprint(graph, len(graph.nodes), (0, 0)) * instance.images.element_size())
    budget = Budget.of(settings.memory, instance.images.device)
    parts = in_chunks((len(subsets), 1), row_bytes, budget, work)
    return _results(subsets, parts, instance.eps, settings.tolerance)


def _check(instance: Instance, subsets: Sequence[Subset], teams: Sequence[int] | None) -> None:
    """Refuse subsets that name no choice, or one that does not exist, or an image twice."""
    if teams is not None and len(teams) != len(subsets):
        raise CitrusError(f"There are {len(subsets)} subsets, but {len(teams)} teams.")
    truth = instance.labels.tolist()
    for subset in subsets:
        images = [i for i, _ in subset]
        known = all(0 <= i < len(truth) and 0 <= j < instance.graph.classes and j != truth[i] for i, j in subset)
        if not subset or not known or len(set(images)) < len(images):
            raise CitrusError(
                f"A subset names one wrong label of each of some of the {len(truth)} images, got {subset}."
            )


def _spec(instance: Instance, choices: Sequence[Choice]) -> Tensor:
    """One row e_y - e_j per member: (member, 1, class)."""
    like = instance.images
    identity = torch.eye(instance.graph.classes, dtype=like.dtype, device=like.device)
    image, label = (torch.tensor(part, device=like.device) for part in zip(*choices, strict=True))
    return (identity[instance.labels[image]] - identity[label])[:, None]


def _members(
    graph: Graph, instance: Instance, image: Tensor, spec: Tensor, boxes: Sequence[Box], subsets: Sequence[Subset]
) -> Members:
    """The members of some subsets, one after another."""
    which, place = image.unique(return_inverse=True)
    with torch.no_grad():
        at_centre = [value[place] for value in points(graph, instance.images[which])]
        triangles = tuple(triangle(b, at_centre[i]) for b, i in zip(boxes, relu_places(graph), strict=True))
        base = torch.einsum("mc,mc->m", spec[:, 0], at_centre[-1])
    sizes = torch.tensor([len(subset) for subset in subsets], device=image.device)
    return Members(
        graph,
        spec,
        base,
        triangles,
        torch.arange(len(sizes), device=image.device).repeat_interleave(sizes),
        instance.eps,
    )


def _starting(boxes: Sequence[Box], choices: Sequence[Choice], starts: Starts | None) -> list[Tensor]:
    """Slopes (member, 1, *neurons): those given, else the adaptive ones."""
    slopes = [adaptive_slopes(box) for box in boxes]
    for place, choice in enumerate(choices):
        for layer, given in enumerate((starts or {}).get(choice, ())):
            slopes[layer][place] = given
    return [s[:, None] for s in slopes]


def _results(subsets: Sequence[Subset], parts: Sequence[Tensor], eps: float, tolerance: float) -> list[JointResult]:
    """Every proof is evaluated here in float64, on planes made in float64: what the climb believed does not count."""
    lambdas, a, b, steps, *slopes = parts
    results, start = [], 0
    for number, choices in enumerate(subsets):
        own = slice(start, start + len(choices))
        start = own.stop
        share = lambdas[own].double() / lambdas[own].double().sum()
        reach = b[own].abs() + eps * a[own].abs().sum(1)
        # Row r of `trials` leaves out the r members of smallest weight: the proof may not need them.
        rank = share.argsort().argsort()
        trials = share * (rank >= torch.arange(len(choices), device=rank.device)[:, None])
        value, rounding = dual_value(a[own], b[own], eps, trials)
        holds = (value - rounding > tolerance * (trials * reach).sum(1)).tolist()
        drop = max((r for r, proved in enumerate(holds) if proved), default=0)
        core = tuple(c for c, r in zip(choices, rank.tolist(), strict=True) if r >= drop) if any(holds) else ()
        own_slopes = tuple(s[own] for s in slopes)
        left = float(value[0] - rounding[0])
        results.append(
            JointResult(choices, left, any(holds), core, share, own_slopes, a[own], b[own], int(steps[number]))
        )
    return results
