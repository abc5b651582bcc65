"""What lower planes of margins are made from, and how they are made again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.checker.arithmetic import LinearForms, Network
from citrus.checker.enclosure import Enclosure

Side = tuple[int, int]
"""A neuron, counted through all ReLUs in the network's order, and 1 where its input is >= 0, or 0 where it is <= 0."""


@dataclass(frozen=True, eq=False)
class PlaneSource:
    """What a lower plane of a margin is made from; an object that several proofs share is computed once."""

    image: int  # position in the group
    label: int  # the wrong label
    slopes: Tensor | None = None
    """Lower slopes of all ReLUs in the network's order, in [0, 1] or as bytes 0..255: (neuron,); None takes adaptive
    ones, 1 where u > -l, else 0."""
    sides: tuple[Side, ...] = ()
    """The plane need hold only where these are true."""

    @property
    def exact_slopes(self) -> Tensor:
        """In float64; none if they are adaptive."""
        if self.slopes is None:
            return torch.zeros(0, dtype=torch.float64)
        return self.slopes.detach().cpu().double() / (255 if self.slopes.dtype == torch.uint8 else 1)

    def is_usable(self, network: Network) -> bool:
        """Adaptive slopes, or as many as there are ReLUs, all in [0, 1]; sides of ReLUs that exist."""
        if self.slopes is None:
            return not self.sides
        slopes = self.exact_slopes
        whole = slopes.shape == (network.neurons,) and bool(((slopes >= 0) & (slopes <= 1)).all())  # no NaN
        return whole and all(0 <= neuron < network.neurons and on in (0, 1) for neuron, on in self.sides)


def planes_of(
    boxes: Enclosure, label: int, sources: Sequence[PlaneSource]
) -> Iterator[tuple[PlaneSource, LinearForms]]:
    """The planes of one image with this label, one row each: with adaptive slopes, and with slopes of their own."""
    for adaptive in (True, False):
        batch = [source for source in sources if (source.slopes is None) is adaptive]
        for some in (batch[k : k + BATCH] for k in range(0, len(batch), BATCH)):
            wrong = torch.tensor([source.label for source in some])
            slopes = None if adaptive else torch.stack([source.exact_slopes for source in some])
            rows = boxes.planes(label, wrong, slopes, sides=_padded([source.sides for source in some]))
            yield from ((source, rows[k : k + 1]) for k, source in enumerate(some))


BATCH = 64
"""Planes that are made at a time."""


def _padded(sides: Sequence[tuple[Side, ...]]) -> Tensor | None:
    """(row, side, 2), with -1 where a row has fewer; None if none has any."""
    most = max(map(len, sides))
    return torch.tensor([[*one, *[(-1, -1)] * (most - len(one))] for one in sides]) if most else None
