"""IBP (Shi et al., NeurIPS 2021) and SABR (Mueller et al., ICLR 2023): the interval loss of one box per image."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from citrus.attacks import Ascent
from citrus.methods.base import Batch, Method, MethodLoss, box_losses


@dataclass(frozen=True)
class IBP(Method):
    """The box is all of the image's eps-neighbourhood."""

    name: ClassVar[str] = "ibp"
    certified: ClassVar[bool] = True

    def loss(self, batch: Batch) -> MethodLoss:
        losses, boxes = box_losses(batch, batch.images, batch.eps, batch.labels)
        return MethodLoss(losses.mean(), boxes)


@dataclass(frozen=True)
class SABR(Method):
    """A small box: radius tau = tau_ratio * eps around the image's own adversarial example."""

    name: ClassVar[str] = "sabr"
    certified: ClassVar[bool] = True
    limits: ClassVar = {"tau_ratio": "[0, 1]", "shrink": "(0, 1]"}

    tau_ratio: float = 0.7
    """Radius of the small box as a share of eps: 1 is IBP, 0 is adversarial training."""
    shrink: float = 1.0
    """Factor on the upper bound of ReLUs that may be on or off; the authors use 0.8 at CIFAR-10 2/255."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=8, step_size=0.5, decay=0.1, decay_at=(0.5, 0.875)))

    def loss(self, batch: Batch) -> MethodLoss:
        losses, boxes = box_losses(batch, *self.small_box(batch), batch.labels, self.shrink)
        return MethodLoss(losses.mean(), boxes)

    def small_box(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Centre and radius of the box around each image's adversarial example, moved into the image's eps-box."""
        radius = torch.ones_like(batch.images[:1]) * (self.tau_ratio * batch.eps)
        if self.tau_ratio == 1:
            return batch.images, radius
        centre = batch.images + batch.perturbations(batch.eps, self.attack)
        lower, upper = batch.images - batch.eps, batch.images + batch.eps
        if batch.clip:  # where the clipped eps-box is narrower than 2 tau, all of it
            lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
            radius = torch.minimum(radius, (upper - lower) / 2)
        return torch.minimum(torch.maximum(centre, lower + radius), upper - radius), radius
