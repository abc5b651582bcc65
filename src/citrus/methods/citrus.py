"""CITRUS (Xu and Singh, ECCV 2024): each image is trained on boxes around the adversarial perturbations of the others.

Algorithm 1 of the paper, for a group of m images x_1..x_m with perturbations v_1..v_m found in the ball of radius
eps - tau:    L = sum over i, sum over j != i of  L_IBP(x_i + v_j, y_i, tau).
Here the sum is divided by its number of terms, and a batch may hold many groups.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from citrus.attacks import Ascent, pgd
from citrus.errors import CitrusError
from citrus.methods.base import Batch, Method, MethodLoss, box_losses
from citrus.methods.sabr import check_tau


def partner_index(size: int, shifts: Tensor) -> Tensor:
    """Who lends each image its perturbation: (images, partners).

    Row g of `shifts` (groups, partners) turns group g in a circle: member p borrows from member p + shift. A shift that
    is no multiple of the group's size is a derangement, so no image meets its own perturbation.
    """
    groups = len(shifts)
    place = torch.arange(size, device=shifts.device)
    first = size * torch.arange(groups, device=shifts.device)
    return (first[:, None, None] + (place[None, :, None] + shifts[:, None, :]) % size).flatten(0, 1)


@dataclass(frozen=True)
class Citrus(Method):
    """Cross-input boxes of radius tau = tau_ratio * eps."""

    name: ClassVar[str] = "citrus"
    certified: ClassVar[bool] = True
    same_input: ClassVar[bool] = False

    tau_ratio: float = 0.7
    """Radius of the small boxes as a share of eps."""
    group_size: int = 5
    """Images whose perturbations are exchanged (m, the paper's batch size); 0 means the whole batch is one group."""
    partners: int = 0
    """Perturbations each image borrows, drawn at random from its group (b); 0 means all others, the paper's sum."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=20, step_size=0.2, decay=0.2, decay_at=(0.5, 0.8)))

    def check(self, batch_size: int) -> None:
        check_tau(self.tau_ratio)
        size = self.group_size or batch_size
        if size < 2:
            raise CitrusError(f"A CITRUS group needs at least 2 images, got group_size {size}.")
        if size > batch_size:
            raise CitrusError(f"group_size {size} is larger than batch_size {batch_size}: enlarge the batch.")
        if batch_size % size:
            raise CitrusError(f"batch_size {batch_size} is no multiple of group_size {size}: no group may be cut.")
        if not 0 <= self.partners < size:
            raise CitrusError(
                f"An image of a group of {size} can have 0 (all) to {size - 1} partners, got {self.partners}."
            )

    def loss(self, batch: Batch) -> MethodLoss:
        tau = self.tau_ratio * batch.eps
        delta = pgd(
            *(batch.frozen(), batch.images, batch.labels, batch.eps - tau, self.attack),
            clip=batch.clip,
            generator=batch.generator,
        )
        return self.cross_loss(batch, delta, self.draw_shifts(batch))

    def draw_shifts(self, batch: Batch) -> Tensor:
        """Which members lend their perturbation: all shifts 1..m-1, or `partners` of them per group at random."""
        size = self.group_size or len(batch.images)
        groups = len(batch.images) // size
        if not self.partners:
            return torch.arange(1, size, device=batch.images.device).expand(groups, -1)
        noise = torch.rand(groups, size - 1, generator=batch.generator, device=batch.images.device)
        return noise.argsort(1)[:, : self.partners] + 1

    def cross_loss(self, batch: Batch, delta: Tensor, shifts: Tensor) -> MethodLoss:
        """Mean over images and shifts of L_IBP(x_i + v_partner, y_i, tau)."""
        size = self.group_size or len(batch.images)
        if self.same_input:
            shifts = torch.cat([shifts, torch.zeros_like(shifts[:, :1])], 1)
        partner = partner_index(size, shifts)
        count = partner.shape[1]
        centre = (batch.images[:, None] + delta[partner]).flatten(0, 1)
        labels = batch.labels.repeat_interleave(count)
        losses, boxes = box_losses(batch, centre, self.tau_ratio * batch.eps, labels)
        losses = losses.view(-1, count)
        if self.same_input:  # one own box beside m - 1 cross-input ones, however many of those were drawn
            return MethodLoss((losses[:, :-1].mean() * (size - 1) + losses[:, -1].mean()) / size, boxes)
        return MethodLoss(losses.mean(), boxes)
