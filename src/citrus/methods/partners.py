"""Which perturbations an image of CITRUS meets: those of its group's other members, or of sets of them."""

from math import comb

import torch
from torch import Tensor

from citrus.errors import CitrusError

MOST_BOXES = 256  # of one image in the exact sum for k > 2


def check_partners(size: int, k: int, partners: int) -> None:
    """Raise CitrusError when groups of `size` images cannot lend what is asked for."""
    if not 2 <= k <= size:
        raise CitrusError(f"k must lie between 2 and the group's {size} images, got {k}.")
    most = size - k + 1  # sets of k - 1 neighbours in a circle that leave an image out
    if not 0 <= partners <= most:
        raise CitrusError(f"An image of a group of {size} can have 0 (all) to {most} partners, got {partners}.")
    if k > 2 and not partners and comb(size - 1, k - 1) > MOST_BOXES:
        raise CitrusError(
            f"k {k} in groups of {size} makes {comb(size - 1, k - 1)} boxes per image, more than {MOST_BOXES}: set "
            "partners to draw some of them."
        )


def partner_index(size: int, shifts: Tensor, place: Tensor | None = None) -> Tensor:
    """Who lends each image its perturbation: (images, partners).

    Row g of `shifts` (groups, partners) turns group g in a circle: member p borrows from member p + shift. A shift that
    is no multiple of the group's size is a derangement, so no image meets its own perturbation. The circle may be in
    another order: `place` (groups, size) says where each member stands, and places are what is lent.
    """
    groups = len(shifts)
    place = torch.arange(size, device=shifts.device)[None] if place is None else place
    first = size * torch.arange(groups, device=shifts.device)
    return (first[:, None, None] + (place[:, :, None] + shifts[:, None, :]) % size).flatten(0, 1)


def windows(order: Tensor, count: int) -> Tensor:
    """Sets of `count` neighbours: (groups * size, count) numbers of images.

    `order` (groups, size) is the member of the group at each place of its circle; set p begins at place p.
    """
    groups, size = order.shape
    place = torch.arange(size, device=order.device)
    neighbours = (place[:, None] + place[:count]) % size
    first = size * torch.arange(groups, device=order.device)
    return (first[:, None, None] + order[:, neighbours]).flatten(0, 1)


def every_subset(size: int, groups: int, count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """All sets of `count` members of each group, (sets, count), and for each image those without and with it."""
    subsets = subsets_of(size, count, device)
    group = torch.arange(groups, device=device)[:, None, None]
    contains = (subsets == torch.arange(size, device=device)[:, None, None]).any(2)  # (member, subset)
    order = (len(subsets) * group + contains.byte().argsort(dim=1, stable=True)).flatten(0, 1)
    without = comb(size - 1, count)
    return (size * group + subsets).flatten(0, 1), order[:, :without], order[:, without:]


def subsets_of(size: int, count: int, device: torch.device) -> Tensor:
    """Every set of `count` numbers below `size`, one per row, without a table that the host would have to send.

    Row n is n in the combinatorial number system: n = sum over i of (member_i over i), the largest member first.
    """
    over = [torch.ones(size, dtype=torch.long, device=device)]  # over[i][c] = c over i, by Pascal's triangle
    for _ in range(count):
        over.append(over[-1].cumsum(0) - over[-1])
    rest = torch.arange(comb(size, count), device=device)
    members = []
    for choices in reversed(over[1:]):
        members.append((choices <= rest[:, None]).sum(1) - 1)
        rest = rest - choices[members[-1]]
    return torch.stack(members, 1)
