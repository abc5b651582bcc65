"""SABR (Mueller et al., ICLR 2023): the interval loss of a small box around an adversarial example."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from citrus.attacks import Ascent
from citrus.methods.base import Batch, Method, MethodLoss, box_losses


@dataclass(frozen=True)
class SABR(Method):
    """One small box per image: radius tau = tau_ratio * eps around the image's own adversarial example."""

    name: ClassVar[str] = "sabr"
    certified: ClassVar[bool] = True
    limits: ClassVar = {"tau_ratio": "[0, 1]", "shrink": "(0, 1]"}

    tau_ratio: float = 0.7
    """Radius of the small box as a share of eps: 1 is IBP, 0 is adversarial training."""
    shrink: float = 1.0
    """Factor on the upper bound of ReLUs that may be on or off; the authors use 0.8 at CIFAR-10 2/255."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=8, step_size=0.5, decay=0.1, decay_at=(0.5, 0.875)))

    def loss(self, batch: Batch) -> MethodLoss:
        centre, radius = self.small_box(batch)
        losses, boxes = box_losses(batch, centre, radius, batch.labels, self.shrink)
        return MethodLoss(losses.mean(), boxes)

    def small_box(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Centre and radius of the box around each image's adversarial example, moved into the image's eps-box."""
        tau = self.tau_ratio * batch.eps
        if self.tau_ratio == 1:
            return batch.images, torch.ones_like(batch.images[:1]) * tau
        centre = batch.images + batch.perturbations(batch.eps, self.attack)
        lower, upper = batch.images - batch.eps, batch.images + batch.eps
        radius = torch.ones_like(centre[:1]) * tau
        if batch.clip:  # where the clipped eps-box is narrower than 2 tau, all of it
            lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
            radius = ((upper - lower) / 2).clamp(max=tau)
        return torch.minimum(torch.maximum(centre, lower + radius), upper - radius), radius
