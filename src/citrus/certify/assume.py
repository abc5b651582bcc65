"""Proof by contradiction: tighter boxes under the assumption that all choices of a subset are violated.

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
from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.bounds.interval import Box
from citrus.bounds.substitution import lower_planes, relu_places
from citrus.networks.operations import Graph

STEPS = 50
RATE = 0.3
DECAY = 0.94


@dataclass(frozen=True)
class Neurons:
    """Planes of the undecided neurons of one image's last layer of ReLUs: first under each z, then under each -z."""

    index: Tensor  # (neuron,): places in the layer
    a: Tensor  # (2 neuron, pixel)
    b: Tensor  # (2 neuron,)


@dataclass(frozen=True)
class Assumption:
    """One round of tightening: all that is needed to redo it."""

    slopes: tuple[Tensor, ...]  # (member, *neurons): of the margins' planes, on the boxes before this round
    neurons: tuple[Tensor, ...]  # of each member the neurons whose bounds follow: (neuron,)
    multipliers: tuple[Tensor, ...]  # of each member mu of the lower, then of the upper bounds: (2 neuron, member)


def neurons_of(graph: Graph, image: Tensor, boxes: Sequence[Box]) -> Neurons:
    """CROWN's planes of one image's undecided neurons, given its boxes: (1, ...) each."""
    place = relu_places(graph)[-1]
    part = Graph(graph.nodes[:place], graph.input_shape)
    last = boxes[-1]
    index = ((last.lower < 0) & (last.upper > 0)).flatten().nonzero()[:, 0]
    rows = image.new_zeros(2, len(index), last.centre.numel())
    rows[0].scatter_(1, index[:, None], 1.0)
    rows[1].scatter_(1, index[:, None], -1.0)
    with torch.no_grad():
        planes = lower_planes(part, image, rows.view(1, -1, *last.centre.shape[1:]), boxes[:-1])
    return Neurons(index, planes.a[0].flatten(1), planes.b[0])


def tighten(box: Box, member: int, neurons: Neurons, a: Tensor, b: Tensor, how: tuple[float, float]) -> Tensor:
    """Tighten row `member` of the box in place, given planes a (choice, pixel), b that are <= 0; returns mu.

    `how` is (eps, tolerance); bounds are weakened by this share of the numbers they are made of.
    """
    eps, tolerance = how
    multipliers = _multipliers(neurons, a, b, eps)
    value = neurons.b + multipliers @ b - eps * (neurons.a + multipliers @ a).abs().sum(1)
    reach = b.abs() + eps * a.abs().sum(1)
    size = neurons.b.abs() + eps * neurons.a.abs().sum(1) + multipliers @ reach
    low, negative_high = (value - tolerance * size).chunk(2)
    lower, upper = box.lower[member].flatten(), box.upper[member].flatten()
    lower[neurons.index] = torch.fmax(lower[neurons.index], low)  # fmax: a bound that is NaN says nothing
    upper[neurons.index] = torch.fmin(upper[neurons.index], -negative_high)
    upper = torch.maximum(lower, upper)  # bounds that cross prove the subset; a box must stay a box
    shape = box.centre.shape[1:]
    box.centre[member], box.radius[member] = ((lower + upper) / 2).view(shape), ((upper - lower) / 2).view(shape)
    return multipliers


def _multipliers(neurons: Neurons, a: Tensor, b: Tensor, eps: float) -> Tensor:
    """The best mu >= 0 of each neuron's bound that projected Adam meets, starting from 0: (2 neuron, choice)."""
    mu = neurons.b.new_zeros(len(neurons.b), len(b))
    # In units in which mu = 1 gives a margin's slopes the size of the neuron's.
    unit = neurons.a.abs().sum(1, keepdim=True) / a.abs().sum(1).clamp(min=1e-12)
    first, second = torch.zeros_like(mu), torch.zeros_like(mu)
    best, kept = neurons.b - eps * neurons.a.abs().sum(1), mu
    for step in range(1, STEPS + 1):
        mixed = neurons.a + (mu * unit) @ a
        value = neurons.b + (mu * unit) @ b - eps * mixed.abs().sum(1)
        better = value > best
        best, kept = torch.where(better, value, best), torch.where(better[:, None], mu, kept)
        gradient = (b - eps * (mixed.sign() @ a.T)) * unit
        first = first.lerp(gradient, 0.1)
        second = second.lerp(gradient.square(), 0.01)
        move = first / (1 - 0.9**step) / ((second / (1 - 0.99**step)).sqrt() + 1e-12)
        mu = (mu + RATE * DECAY**step * move).clamp(min=0)
    return kept * unit
