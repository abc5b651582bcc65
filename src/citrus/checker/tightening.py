"""Proofs by contradiction in float64: boxes of the last ReLUs that need to hold only where margins are <= 0.

To prove that no delta violates all of a set of choices one may assume that one does. There the planes of their margins,
a_k . delta + b_k - e_k, are all <= 0, so that with a plane A . delta + B - E under a neuron's input z and any mu >= 0

    z >= B - E + sum_k mu_k (b_k - e_k) - eps || A + sum_k mu_k a_k ||_1

at every such delta, and likewise for -z. Planes of margins on the tighter boxes hold at these delta, too, and may serve
in the next round. Planes of neurons have adaptive slopes and live on the boxes of the layers before, which belong to
the image alone and stay as they are. A box that becomes empty says that there is no such delta: then everything about
it is true, and it is made a point.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.checker.arithmetic import TINY, LinearForms, gamma
from citrus.checker.enclosure import Enclosure, Ends


@dataclass(frozen=True)
class UndecidedNeurons:
    """Planes over delta of one image's undecided inputs z of the last ReLUs: first under each z, then under each -z."""

    place: Tensor  # (neuron,): the number of each neuron among the undecided ones, -1 for the others
    planes: LinearForms | None

    @staticmethod
    def of(boxes: Enclosure) -> "UndecidedNeurons":
        low, high = boxes.last
        which = ((low < 0) & (high > 0)).nonzero()[:, 0]
        place = torch.full((len(low),), -1)
        place[which] = torch.arange(len(which))
        return UndecidedNeurons(place, boxes.neuron_planes(which) if len(which) else None)


def tightened(
    box: Ends, neurons: UndecidedNeurons, which: Tensor, multipliers: Tensor, margins: LinearForms, eps: float
) -> Ends:
    """A box of the last ReLUs, (neuron,) each, with bounds of the neurons `which` where all these margins are <= 0.

    `multipliers` (2 which, margin) are mu of the lower bounds, then of the upper ones. Decided neurons stay as they
    are: their lines are exact already.
    """
    planes, chosen = neurons.planes, neurons.place[which] >= 0
    if planes is None or not bool(chosen.any()):
        return box
    which = which[chosen]
    rows = torch.cat([neurons.place[which], neurons.place[which] + len(planes.offset) // 2])
    multipliers = multipliers.double().unflatten(0, (2, -1))[:, chosen].flatten(0, 1)
    below, negative_above = least_where(planes[rows], multipliers, margins, eps).chunk(2)
    low, high = box[0].clone(), box[1].clone()
    low[which] = torch.maximum(low[which], below)
    high[which] = torch.minimum(high[which], -negative_above)
    return low, torch.maximum(low, high)


def least_where(rows: LinearForms, multipliers: Tensor, margins: LinearForms, eps: float) -> Tensor:
    """The least of rows over delta where all margins are <= 0, with all errors subtracted; -inf if unknown: (row,)."""
    value = rows.offset + multipliers @ margins.offset
    value = value - eps * (rows.values + multipliers @ margins.values).abs().sum(1)
    reach = margins.offset.abs() + eps * margins.values.abs().sum(1)
    size = rows.offset.abs() + eps * rows.values.abs().sum(1) + multipliers @ reach
    terms = len(margins.offset) + margins.values.shape[1] + 8
    error = (rows.error + multipliers @ margins.error) * (1 + gamma(terms))
    bound = value - (gamma(terms) * size + error + TINY)
    return torch.where(bound.isfinite(), bound, -torch.inf)
