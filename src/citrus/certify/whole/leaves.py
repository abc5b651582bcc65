"""Parts of open choices with better planes: where the relaxation lets a choice fall a ReLU is split, and each side
has a plane of its own.

A *leaf* is a choice together with the sides of some ReLUs: at every delta one leaf of the choice applies, so leaves
exclude each other as labels of one image do, and together they stand for the choice. A leaf's plane has to hold only
where its sides do, which clips the boxes of these ReLUs at 0.

What is wanted of a plane is not its minimum over the box but that it is above zero where the relaxation says that the
leaf falls (`points`, lowrank.py): slopes climb there, and of the ReLUs that give away most there the one is split that
leaves the lower of both sides highest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from citrus.bounds import Box, Planes, lower_planes
from citrus.bounds.ascent import Adam, Members
from citrus.bounds.chunks import MemoryLimit, in_chunks
from citrus.bounds.rounding import gamma
from citrus.bounds.substitution import footprint
from citrus.networks.operations import Graph

CANDIDATES = 8
"""ReLUs of each leaf that are tried."""
CLIMB, RATE, DECAY = 12, 0.2, 0.95
"""Steps on the slopes, their first length, and by what it is multiplied after each."""
SHARE = 0.2
"""Of the box, where a leaf has no plane that counts: it has to be above zero there before anything else."""
LEVELS = 255
"""Slopes are multiples of 1 / 255, as certificates store them."""


@dataclass(frozen=True)
class Leaves:
    """Leaves of choices, one after another."""

    choice: Tensor  # (leaf,): the number of its choice
    sides: Tensor
    """(leaf, split, 2): the number of a neuron, counted through all ReLUs, and 1 where it is on, 0 where it is off;
    -1 and -1 where there are fewer splits."""
    slopes: Tensor  # (leaf, neuron) of all ReLUs, bytes for multiples of 1 / 255

    @staticmethod
    def joined(parts: Sequence["Leaves"]) -> "Leaves":
        depth = max(part.depth for part in parts)
        return Leaves(
            torch.cat([part.choice for part in parts]),
            torch.cat([part.deep(depth).sides for part in parts]),
            torch.cat([part.slopes for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.choice)

    def __getitem__(self, where: Tensor | slice) -> "Leaves":
        return Leaves(self.choice[where], self.sides[where], self.slopes[where])

    @property
    def depth(self) -> int:
        """Splits of the leaf that has most."""
        return self.sides.shape[1]

    def deep(self, depth: int) -> "Leaves":
        """The same with room for so many splits."""
        more = self.sides.new_full((len(self), depth - self.depth, 2), -1)
        return replace(self, sides=torch.cat([self.sides, more], 1))

    def split(self, neuron: Tensor, on: bool) -> "Leaves":
        """One side of a neuron (leaf,) of each leaf."""
        side = torch.stack([neuron, torch.full_like(neuron, int(on))], 1)[:, None]
        return replace(self, sides=torch.cat([self.sides, side], 1))


@dataclass(frozen=True)
class OpenImages:
    """Images some labels of which are open, and the boxes that enter their ReLUs."""

    index: Tensor  # (image,): places in the data set
    centre: Tensor  # (image, C, H, W)
    labels: Tensor  # (image,)
    boxes: Box  # of all ReLUs, flat: (image, neuron)

    def __getitem__(self, where: Tensor) -> "OpenImages":
        return OpenImages(self.index[where], self.centre[where], self.labels[where], self.boxes[where])


@dataclass(frozen=True)
class Branching:
    """How leaves of choices are bounded: of which network, where, and at which radius."""

    graph: Graph
    images: OpenImages
    image: Tensor  # (choice,): its image, counted among these
    wrong: Tensor  # (choice,): the wrong label
    eps: float
    memory: int | None = None

    def split(self, leaves: Leaves, points: Tensor, bare: Tensor) -> Leaves:
        """Both sides of one ReLU of every leaf, with slopes that climbed: the first sides of all, then the second ones.

        `points` (leaf, pixel) are in units of the radius; `bare` (leaf,) have no plane that counts, and no point.
        """
        neuron = self._best_neuron(leaves, points, bare)
        both = Leaves.joined([leaves.split(neuron, on) for on in (True, False)])
        return self._climbed(both, points.repeat(2, 1), bare.repeat(2))

    def planes(self, leaves: Leaves) -> Planes:
        """The plane under each leaf in float64, with all rounding in it: (leaf, 1, ...)."""
        graph = self.graph.double()

        def work(some: slice) -> tuple[Tensor, ...]:
            part = leaves[some]
            centre, spec, boxes = self._setting(part)
            boxes = [Box(box.centre.double(), box.radius.double()) for box in boxes]
            slopes = [slope.double() for slope in self._slopes(part)]
            radius = torch.full_like(centre[:1], self.eps, dtype=torch.float64)
            planes = lower_planes(graph, centre.double(), radius, spec.double()[:, None], boxes, slopes)
            return planes.a, planes.b

        return Planes(*self._chunked(len(leaves), work, 2))

    def _best_neuron(self, leaves: Leaves, points: Tensor, bare: Tensor) -> Tensor:
        """Of the neurons that cost the plane most at the point the one whose worse side is best."""

        def work(some: slice) -> tuple[Tensor, ...]:
            part, goal = leaves[some], (points[some], bare[some])
            slopes, (_, _, boxes) = self._slopes(part), self._setting(part)
            with torch.enable_grad():
                radii = [box.radius.clone().requires_grad_() for box in boxes]
                grown = [Box(box.centre, radius) for box, radius in zip(boxes, radii, strict=True)]
                value = self._value(self._members(part, grown), slopes, *goal)
                gradients = torch.autograd.grad(value.sum(), radii)
            cost = torch.cat(
                [
                    torch.where(box.centre.abs() < box.radius, -gradient * box.radius, 0.0).flatten(1)
                    for box, gradient in zip(boxes, gradients, strict=True)
                ],
                1,
            )
            top = cost.topk(min(CANDIDATES, cost.shape[1]), 1).indices
            best, chosen = torch.full_like(cost[:, 0], -torch.inf), top[:, 0].clone()
            for neuron in top.unbind(1):
                sides = [self._members(part.split(neuron, on)) for on in (True, False)]
                worse = torch.minimum(*(self._value(side, slopes, *goal) for side in sides))
                better = worse > best
                best, chosen = torch.where(better, worse, best), torch.where(better, neuron, chosen)
            return (chosen,)

        return self._chunked(len(leaves), work, 1)[0]

    def _climbed(self, leaves: Leaves, points: Tensor, bare: Tensor) -> Leaves:
        """The same leaves with better slopes."""

        def work(some: slice) -> tuple[Tensor, ...]:
            part, goal = leaves[some], (points[some], bare[some])
            members, slopes = self._members(part), self._slopes(part)
            best, kept, adam = torch.full_like(members.base, -torch.inf), slopes, Adam(slopes)
            for step in range(CLIMB + 1):
                last = step == CLIMB
                with torch.set_grad_enabled(not last):
                    own = adam.track(not last)
                    value = self._value(members, own, *goal)
                better = value.detach() > best
                best = torch.where(better, value.detach(), best)
                kept = [
                    torch.where(better.view(-1, *[1] * (new.dim() - 1)), new.detach(), old)
                    for new, old in zip(own, kept, strict=True)
                ]
                if not last:
                    adam.step(value, torch.ones_like(better), RATE * DECAY**step)
            return (torch.cat([(slope * LEVELS).round().byte().flatten(1) for slope in kept], 1),)

        return replace(leaves, slopes=self._chunked(len(leaves), work, 1)[0])

    def _value(self, members: Members, slopes: list[Tensor], points: Tensor, bare: Tensor) -> Tensor:
        """What is wanted of the planes of some leaves: their value at a point."""
        a, b = members.planes(slopes)
        a = self.eps * a
        return b + torch.where(bare, -SHARE * a.abs().sum(1), torch.linalg.vecdot(a, points.to(a.dtype)))

    def _members(self, part: Leaves, boxes: list[Box] | None = None) -> Members:
        graph, (centre, spec, own) = self.graph.map(Tensor.detach), self._setting(part)
        at_centre = [value.to(centre.dtype) for value in graph.double().values(centre.double())]
        radius, order = torch.full_like(centre, self.eps), torch.arange(len(part), device=centre.device)
        return Members.of(graph, at_centre, spec, boxes or own, radius, order)

    def _setting(self, part: Leaves) -> tuple[Tensor, Tensor, list[Box]]:
        """Images, rows and boxes of some leaves, clipped at their sides."""
        image = self.image[part.choice]
        rows, order = torch.eye(self.graph.classes), torch.arange(len(part), device=image.device)
        rows = rows.to(self.images.centre)
        spec = rows[self.images.labels[image]] - rows[self.wrong[part.choice]]
        boxes = self.images.boxes[image]
        centre, radius = boxes.centre.clone(), boxes.radius.clone()
        for neuron, on in (side.unbind(1) for side in part.sides.unbind(1)):
            there = neuron >= 0
            at = order[there], neuron[there]
            own = clipped(Box(centre[at], radius[at]), on[there] > 0)
            centre[at], radius[at] = own.centre, own.radius
        flat = [t.split([prod(shape) for shape in self._shapes], 1) for t in (centre, radius)]
        found = [Box(c.view(-1, *shape), r.view(-1, *shape)) for c, r, shape in zip(*flat, self._shapes, strict=True)]
        return self.images.centre[image], spec, found

    def _slopes(self, part: Leaves) -> list[Tensor]:
        """Of each ReLU: (leaf, 1, *neurons)."""
        parts = part.slopes.split([prod(shape) for shape in self._shapes], 1)
        return [
            (slopes.to(self.images.centre.dtype) / LEVELS).view(-1, 1, *shape)
            for slopes, shape in zip(parts, self._shapes, strict=True)
        ]

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [self.graph.shape_of(value) for value in self.graph.relu_inputs]

    def _chunked(self, count: int, work: Callable[[slice], tuple[Tensor, ...]], words: int) -> tuple[Tensor, ...]:
        """work(some leaves) for all of them, as many at a time as fit; `words` of four bytes for each number."""
        each = 48 * words * footprint(self.graph, len(self.graph.nodes))
        limit = MemoryLimit.of(self.memory, self.images.centre.device)
        return in_chunks((count, 1), each, limit, lambda some, _: work(some))


def clipped(box: Box, on: Tensor) -> Box:
    """A box that holds what of it is >= 0, or <= 0 where not `on`; it ends at 0 exactly."""
    sign = torch.where(on, 1.0, -1.0).to(box.centre.dtype)
    most = box.radius + sign * box.centre + gamma(0, box.centre.dtype) * (box.centre.abs() + box.radius)
    half = most.clamp(min=0) / 2
    return Box(sign * half, half)
