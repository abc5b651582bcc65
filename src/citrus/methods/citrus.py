"""CITRUS (Xu and Singh, ECCV 2024): each image is trained on boxes around the adversarial perturbations of the others.

Algorithm 1 of the paper, for a group of m images x_1..x_m with perturbations v_1..v_m found in the ball of radius
eps - tau:    L = sum over i, sum over j != i of  L_IBP(x_i + v_j, y_i, tau).
Here the sum is divided by its number of terms, and a batch may hold many groups.

This bounds the loss under 2-common perturbations (theorem 2). For k-common ones v_J is sought for k - 1 images J at
once, and the sum runs over the sets J without i. Other departures from the paper are fields that are off by default; a
training radius larger than the one tested is `eps_factor` of the training configuration.
"""

from dataclasses import dataclass, field
from math import comb
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.attacks import Ascent
from citrus.errors import CitrusError
from citrus.methods.base import Batch, Method, MethodLoss, box_losses
from citrus.methods.crown_ibp import linear_losses

MOST_BOXES = 256  # of one image in the exact sum for k > 2


@dataclass(frozen=True)
class Citrus(Method):
    """Cross-input boxes of radius tau = tau_ratio * eps."""

    name: ClassVar[str] = "citrus"
    certified: ClassVar[bool] = True
    same_input: ClassVar[bool] = False
    limits: ClassVar = {"tau_ratio": "[0, 1]", "own": "[0, 1]", "linear": "[0, 1]", "linear_radius": "(0, inf)"}

    tau_ratio: float = 0.7
    """Radius of the small boxes as a share of eps."""
    group_size: int = 5
    """Images whose perturbations are exchanged (m, the paper's batch size); 0 means the whole batch is one group."""
    partners: int = 0
    """Perturbations each image borrows, drawn at random from its group (b); 0 means all others, the paper's sum."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=20, step_size=0.2, decay=0.2, decay_at=(0.5, 0.8)))
    k: int = 2
    """A borrowed perturbation is sought for k - 1 other images at once: the heap of shared adversarial training."""
    own: float = 0.0
    """Share of borrowed perturbations that give way to the image's own: 0 is CITRUS, 1 is SABR."""
    linear: float = 0.0
    """Share of a loss that linear bounds (CROWN) of whole boxes around the images give: for networks that are
    certified by them, where interval bounds of small boxes leave too much open."""
    linear_radius: float = 1.0
    """Radius of those boxes as a multiple of eps."""

    def check(self, batch_size: int) -> None:
        super().check(batch_size)
        size = self.group_size or batch_size
        if size < 2:
            raise CitrusError(f"A CITRUS group needs at least 2 images, got group_size {size}.")
        if size > batch_size:
            raise CitrusError(f"group_size {size} is larger than batch_size {batch_size}: enlarge the batch.")
        if batch_size % size:
            raise CitrusError(f"batch_size {batch_size} is no multiple of group_size {size}: no group may be cut.")
        if not 2 <= self.k <= size:
            raise CitrusError(f"k must lie between 2 and the group's {size} images, got {self.k}.")
        most = size - self.k + 1  # sets of k - 1 neighbours in a circle that leave an image out
        if not 0 <= self.partners <= most:
            raise CitrusError(f"Images of a group of {size} can have 0 (all) to {most} partners, got {self.partners}.")
        boxes = comb(size - 1, self.k - 1)
        if self.k > 2 and not self.partners and boxes > MOST_BOXES:
            raise CitrusError(
                f"k {self.k} in groups of {size} makes {boxes} boxes per image, more than {MOST_BOXES}: set partners "
                "to draw some of them."
            )
        if self.own and self.k != 2:
            raise CitrusError(f"own is for k = 2, where an image has one perturbation of its own; got k {self.k}.")

    def tau(self, batch: Batch) -> Tensor | float:
        return self.tau_ratio * batch.eps

    def loss(self, batch: Batch) -> MethodLoss:
        radius = batch.eps - self.tau(batch)
        if self.k == 2:
            delta = batch.perturbations(radius, self.attack)
            return self.cross_loss(batch, delta, *self.lenders(batch, self.draw_shifts(batch)))
        sets, others, own = self.draw_sets(batch)
        delta = batch.perturbations(radius, self.attack, sets)
        return self.cross_loss(batch, delta, others, own)

    def draw_sets(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The sets of k - 1 images that share a perturbation, and the sets without and with each image.

        All of them, or each group's neighbours in a random order, so that every set is equally likely.
        """
        size, groups = self._groups(batch)
        if not self.partners:
            return every_subset(size, groups, self.k - 1, batch.images.device)
        order = torch.rand(groups, size, generator=batch.generator, device=batch.images.device).argsort(1)
        return windows(order, self.k - 1), *self.lenders(batch, self.draw_shifts(batch), order.argsort(1))

    def draw_shifts(self, batch: Batch) -> Tensor:
        """Which places lend their perturbation: all shifts 1..m-k+1, or `partners` of them per group at random."""
        size, groups = self._groups(batch)
        choices = size - self.k + 1
        if not self.partners:
            return torch.arange(1, choices + 1, device=batch.images.device).expand(groups, -1)
        noise = torch.rand(groups, choices, generator=batch.generator, device=batch.images.device)
        return noise.argsort(1)[:, : self.partners] + 1

    def lenders(self, batch: Batch, shifts: Tensor, place: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Whose perturbations the shifts let each image borrow, (images, partners), and its own, (images, 1)."""
        lender = partner_index(self._groups(batch)[0], F.pad(shifts, (0, 1)), place)
        return lender[:, :-1], lender[:, -1:]

    def cross_loss(self, batch: Batch, delta: Tensor, others: Tensor, own: Tensor) -> MethodLoss:
        """Mean over images and their lenders of L_IBP(x_i + v_lender, y_i, tau)."""
        borrowed = delta[others]
        if self.own:
            chance = torch.rand(borrowed.shape[:2], generator=batch.generator, device=borrowed.device)
            borrowed = torch.where((chance < self.own)[:, :, None, None, None], delta[own], borrowed)
        cross = borrowed.shape[1]
        if self.same_input:
            borrowed = torch.cat([borrowed, delta[own]], 1)
        count = borrowed.shape[1]
        centre = (batch.images[:, None] + borrowed).flatten(0, 1)
        losses, boxes = box_losses(batch, centre, self.tau(batch), batch.labels.repeat_interleave(count))
        losses = losses.view(-1, count)
        if self.same_input:  # of m sets in a circle k - 1 hold the image, however many of the others were drawn
            size, _ = self._groups(batch)
            with_it, without = self.k - 1, size - self.k + 1
            loss = (losses[:, :cross].mean() * without + losses[:, cross:].mean() * with_it) / size
        else:
            loss = losses.mean()
        if self.linear:
            loss = (1 - self.linear) * loss + self.linear * linear_losses(batch, self.linear_radius * batch.eps).mean()
        return MethodLoss(loss, boxes)

    def _groups(self, batch: Batch) -> tuple[int, int]:
        """Images per group, and groups."""
        size = self.group_size or len(batch.images)
        return size, len(batch.images) // size


@dataclass(frozen=True)
class CitrusSI(Citrus):
    """The paper's ablation with same-input boxes: CITRUS plus SABR's box, the sum over all j, j = i included."""

    name: ClassVar[str] = "citrus_si"
    same_input: ClassVar[bool] = True


def partner_index(size: int, shifts: Tensor, place: Tensor | None = None) -> Tensor:
    """Who lends each image its perturbation: (images, partners).

    Row g of `shifts` (groups, partners) turns group g in a circle: member p borrows from member p + shift. A shift that
    is no multiple of the group's size is a derangement, so no image meets its own perturbation. The circle may be in
    another order: `place` (groups, size) says where each member stands, and places are what is lent.
    """
    place = torch.arange(size, device=shifts.device)[None] if place is None else place
    first = size * torch.arange(len(shifts), device=shifts.device)
    return (first[:, None, None] + (place[:, :, None] + shifts[:, None, :]) % size).flatten(0, 1)


def windows(order: Tensor, count: int) -> Tensor:
    """Sets of `count` neighbours: (groups * size, count) numbers of images.

    `order` (groups, size) is the member of the group at each place of its circle; set p begins at place p.
    """
    groups, size = order.shape
    place = torch.arange(size, device=order.device)
    first = size * torch.arange(groups, device=order.device)
    return (first[:, None, None] + order[:, (place[:, None] + place[:count]) % size]).flatten(0, 1)


def every_subset(size: int, groups: int, count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """All sets of `count` members of each group, (sets, count), and for each image those without and with it."""
    subsets = subsets_of(size, count, device)
    group = torch.arange(groups, device=device)[:, None, None]
    contains = (subsets == torch.arange(size, device=device)[:, None, None]).any(2)  # (member, subset)
    order = (len(subsets) * group + contains.byte().argsort(dim=1, stable=True)).flatten(0, 1)
    without = comb(size - 1, count)
    return (size * group + subsets).flatten(0, 1), order[:, :without], order[:, without:]


def subsets_of(size: int, count: int, device: torch.device) -> Tensor:
    """Every set of `count` numbers below `size`, one per row, without a table that the host would have to send."""
    found = [torch.zeros(int(few == 0), few, dtype=torch.long, device=device) for few in range(count + 1)]
    for last in range(size):  # sets without this number, then those with it; too small ones are of no use any more
        for few in range(count, max(0, count - size + last), -1):
            found[few] = torch.cat([found[few], F.pad(found[few - 1], (1, 0), value=last)])
    return found[count]
