"""Proof by contradiction: tighter boxes under the assumption that all choices of a set are violated.

To prove that no delta violates all of S one may assume that one does. At such a delta every margin of S is <= 0, and so
are the planes a_k . delta + b_k under it. With a plane A . delta + B under a neuron's z (or -z), for any mu >= 0

    z >= A . delta + B >= A . delta + B + sum_k mu_k (a_k . delta + b_k)
      >= B + sum_k mu_k b_k - eps || A + sum_k mu_k a_k ||_1,

which is a bound of z on all that is left of the box. Tighter boxes give better planes of the margins, those leave less
of the box, and so on: where S is nearly proved little is left, and the rest goes quickly. (Kotha et al., "Provably
Bounding Neural Network Preimages", 2023, bound with output constraints in this way; here they are those of all members,
which share delta.) Only the last layer of ReLUs is tightened. Its planes are CROWN's and belong to the image alone, so
that one more round costs little more than a few products with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds.chunks import MemoryLimit, map_in_chunks
from citrus.bounds.interval import Box
from citrus.bounds.planes import lower_planes
from citrus.bounds.rounding import TINY, below, gamma
from citrus.networks.operations import Graph

STEPS = 40
RATE = 0.3
DECAY = 0.925
COPIES = 6  # of the neurons' planes that a step of the ascent holds


@dataclass(frozen=True)
class NeuronPlanes:
    """Planes of the undecided neurons of one image's last layer of ReLUs: under each z and under each -z."""

    index: Tensor  # (neuron,): places in the layer
    a: Tensor  # (neuron, 2, pixel)
    b: Tensor  # (neuron, 2)


@dataclass(frozen=True)
class Assumption:
    """One round of tightening: all that is needed to redo it."""

    slopes: tuple[Tensor, ...]  # (member, *neurons): of the margins' planes, on the boxes before this round
    neurons: tuple[Tensor, ...]  # of each member the neurons whose bounds follow: (neuron,)
    multipliers: tuple[Tensor, ...]  # of each member mu of the lower, then of the upper bounds: (2 neuron, member)


@dataclass(frozen=True)
class Violated:
    """A member of a set all of whose choices are assumed to be violated."""

    box: Box  # that enters the last ReLUs, (neuron, ...) without a batch axis
    neurons: NeuronPlanes
    a: Tensor  # (choice, pixel): planes of the set's margins
    b: Tensor  # (choice,)


def neuron_planes(graph: Graph, image: Tensor, radius: Tensor, boxes: Sequence[Box]) -> NeuronPlanes:
    """CROWN's planes of one image's undecided neurons, given its boxes: (1, ...) each."""
    place = graph.relu_inputs[-1]
    part = replace(graph, nodes=graph.nodes[:place])
    last = boxes[-1]
    index = ((last.lower < 0) & (last.upper > 0)).flatten().nonzero()[:, 0]
    rows = image.new_zeros(len(index), 2, last.centre.numel())
    rows[:, 0].scatter_(1, index[:, None], 1.0)
    rows[:, 1].scatter_(1, index[:, None], -1.0)
    with torch.no_grad():
        planes = lower_planes(part, image, radius, rows.view(1, -1, *last.centre.shape[1:]), boxes[:-1])
    return NeuronPlanes(index, planes.a[0].flatten(1).unflatten(0, (-1, 2)), planes.b[0].unflatten(0, (-1, 2)))


Tightened = tuple[Box, Tensor]
"""The box of a member where all choices are violated, and the multipliers (2 neuron, choice) that prove it."""


def tighten(members: Sequence[Violated], eps: float, budget: MemoryLimit) -> list[Tightened]:
    """Tighten the boxes of these members, as many at a time as the budget holds."""
    widest = max((m.neurons.a.numel() * m.neurons.a.element_size() for m in members), default=0)
    return map_in_chunks(members, COPIES * max(widest, 1), budget, lambda part: _tighten(part, eps))


def _tighten(members: Sequence[Violated], eps: float) -> list[Tightened]:
    """All members at once: what one has fewer neurons or choices than another is filled up with zeros."""
    index = _filled([m.neurons.index for m in members])
    real = _filled([torch.ones_like(m.neurons.index) for m in members]) > 0
    neurons_a = _filled([m.neurons.a for m in members]).flatten(1, 2)
    neurons_b = _filled([m.neurons.b for m in members]).flatten(1, 2)
    a, b = _filled([m.a for m in members]), _filled([m.b for m in members])
    mu = _multipliers(neurons_a, neurons_b, a, b, eps)
    bound = _bound(neurons_a, neurons_b, a, b, mu, eps).unflatten(1, (-1, 2))
    bounds = torch.where(bound.isfinite() & real[:, :, None], bound, -torch.inf)  # NaN says nothing
    lower = torch.stack([m.box.lower.flatten() for m in members]).scatter_reduce(1, index, bounds[:, :, 0], "amax")
    upper = torch.stack([m.box.upper.flatten() for m in members]).scatter_reduce(1, index, -bounds[:, :, 1], "amin")
    upper = torch.maximum(lower, upper)  # bounds that cross prove the set; the box is then a point, as in the checker
    found = []
    for m, low, high, own in zip(members, lower, upper, mu.unflatten(1, (-1, 2)), strict=True):
        box = Box.between(low.view_as(m.box.centre), high.view_as(m.box.centre))
        found.append((box, own[: len(m.neurons.index), :, : len(m.b)].transpose(0, 1).flatten(0, 1)))
    return found


def _filled(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of different lengths as one, the shorter ones filled up with zeros."""
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)


def _bound(neurons_a: Tensor, neurons_b: Tensor, a: Tensor, b: Tensor, mu: Tensor, eps: float) -> Tensor:
    """The bound of each neuron that mu gives, with its rounding: (member, 2 neuron). Only products are in the precision
    of the planes; sums over pixels are in float64."""

    def norm(rows: Tensor) -> Tensor:
        return eps * rows.abs().sum(2, dtype=torch.float64)

    weights, own, others = mu.double(), neurons_b.double(), b.double()
    value = own + _dot(weights, others) - norm(torch.baddbmm(neurons_a, mu, a))
    size = own.abs() + norm(neurons_a) + _dot(weights, others.abs() + norm(a))
    pixels = gamma(a.shape[2] + mu.shape[2], torch.float64)
    # The planes were rounded to this precision, and each number of the mix is a sum of as many products as choices.
    bound = value - (gamma(mu.shape[2] + 4, a.dtype) + pixels) * size - TINY[a.dtype] * (1 + size)
    return below(bound, a.dtype)


def _dot(mu: Tensor, values: Tensor) -> Tensor:
    """Sums over the choices of (member, 2 neuron, choice) times (member, choice)."""
    return (mu @ values[:, :, None])[:, :, 0]


def _multipliers(neurons_a: Tensor, neurons_b: Tensor, a: Tensor, b: Tensor, eps: float) -> Tensor:
    """The best mu >= 0 of each neuron's bound that projected Adam meets, starting from 0.

    Planes are (member, 2 neuron, pixel) and (member, choice, pixel); a choice of zeros keeps its mu = 0.
    """
    mu = neurons_b.new_zeros(*neurons_b.shape, b.shape[1])
    # In units in which mu = 1 gives a margin's slopes the size of the neuron's.
    unit = neurons_a.abs().sum(2, keepdim=True) / a.abs().sum(2).clamp(min=1e-12)[:, None]
    first, second = torch.zeros_like(mu), torch.zeros_like(mu)
    best, kept = neurons_b - eps * neurons_a.abs().sum(2), mu
    for step in range(1, STEPS + 1):
        scaled = mu * unit
        mixed = torch.baddbmm(neurons_a, scaled, a)
        gradient = (b[:, None] - eps * (mixed.sign() @ a.mT)) * unit
        value = neurons_b + _dot(scaled, b) - eps * mixed.abs_().sum(2)
        better = value > best
        best, kept = torch.where(better, value, best), torch.where(better[:, :, None], scaled, kept)
        first = first.lerp(gradient, 0.1)
        second = second.lerp(gradient.square(), 0.01)
        move = first / (1 - 0.9**step) / ((second / (1 - 0.99**step)).sqrt() + 1e-12)
        mu = (mu + RATE * DECAY**step * move).clamp(min=0)
    return kept
