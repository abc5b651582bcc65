"""Which perturbations an image of CITRUS meets: those of its group's other members, of sets of them, or older ones."""

from math import comb

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from citrus.errors import CitrusError
from citrus.methods.base import Batch

MOST_BOXES = 256  # of one image in the exact sum for k > 2


def check_partners(size: int, k: int, partners: int, worst_of: int) -> None:
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
    if worst_of and not 1 <= partners <= worst_of <= most:
        raise CitrusError(
            f"worst_of must lie between partners and {most}, and partners be at least 1, got worst_of {worst_of} and "
            f"partners {partners}."
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


def worst(batch: Batch, candidates: Tensor, keep: int) -> Tensor:
    """Of each image's candidate perturbations (images, candidates, C, H, W) the `keep` with the highest loss."""
    points = batch.clipped(batch.images[:, None] + candidates)
    count = candidates.shape[1]
    with torch.no_grad():
        logits = batch.frozen()(points.flatten(0, 1))
        losses = F.cross_entropy(logits, batch.labels.repeat_interleave(count), reduction="none").view(-1, count)
    chosen = losses.topk(keep, 1).indices
    return candidates.take_along_dim(chosen[:, :, None, None, None], 1)


def point_losses(batch: Batch, points: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy at each point, (points,); as many points are recomputed in the backward pass as boxes would be."""

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(batch.graph(x), y, reduction="none")

    points = batch.clipped(points)
    if len(points) <= batch.max_boxes:
        return losses(points, labels)
    chunks = zip(points.split(batch.max_boxes), labels.split(batch.max_boxes), strict=True)
    return torch.cat([checkpoint(losses, *c, use_reentrant=False, preserve_rng_state=False) for c in chunks])


def empty_memory(slots: int, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """A ring of perturbations as shares of the radius they were found in, and how many were ever written."""
    return {"memory": torch.zeros(slots, *shape), "written": torch.zeros((), dtype=torch.long)}


def recall(batch: Batch, delta: Tensor, borrowed: Tensor, radius: Tensor | float) -> Tensor:
    """Older perturbations in place of the borrowed ones, where the memory has them; then it takes in `delta`.

    A ring of random turns: the b slots of one image differ, and so do the images of one slot while slots last. Slots
    that nothing was written to yet are answered by what was borrowed.
    """
    memory, written = batch.state["memory"], batch.state["written"]
    slots, (images, count) = len(memory), borrowed.shape[:2]
    turns = torch.rand(slots, generator=batch.generator, device=delta.device).argsort()[:count]
    slot = (torch.arange(images, device=delta.device)[:, None] + turns) % slots
    known = (slot < written)[:, :, None, None, None]
    recalled = torch.where(known, memory[slot].to(delta.dtype) * radius, borrowed)
    with torch.no_grad():
        oldest = (written + torch.arange(len(delta), device=delta.device)) % slots
        share = delta / (torch.ones_like(delta[:1]) * radius).clamp(min=torch.finfo(delta.dtype).tiny)
        memory.index_copy_(0, oldest, share.to(memory.dtype))
        written.add_(len(delta))
    return recalled
