"""SABR (Mueller et al., ICLR 2023): the interval loss of a small box around an adversarial example."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from citrus.attacks import Ascent, pgd
from citrus.errors import CitrusError
from citrus.methods.base import Batch, Method, MethodLoss, box_losses


def check_tau(tau_ratio: float) -> None:
    if not 0 <= tau_ratio <= 1:
        raise CitrusError(f"tau must lie between 0 and eps, so tau_ratio = tau/eps in [0, 1], got {tau_ratio}.")


def check_shrink(shrink: float) -> None:
    if not 0 < shrink <= 1:
        raise CitrusError(f"shrink must lie in (0, 1], got {shrink}.")


@dataclass(frozen=True)
class SABR(Method):
    """One small box per image: radius tau = tau_ratio * eps around the image's own adversarial example."""

    name: ClassVar[str] = "sabr"
    certified: ClassVar[bool] = True

    tau_ratio: float = 0.7
    """Radius of the small box as a share of eps: 1 is IBP, 0 is adversarial training."""
    shrink: float = 1.0
    """Factor on the upper bound of ReLUs that may be on or off; the authors use 0.8 at CIFAR-10 2/255."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=8, step_size=0.5, decay=0.1, decay_at=(0.5, 0.875)))

    def check(self, batch_size: int) -> None:
        check_tau(self.tau_ratio)
        check_shrink(self.shrink)

    def loss(self, batch: Batch) -> MethodLoss:
        centre, radius = self.small_box(batch)
        losses, boxes = box_losses(batch, centre, radius, batch.labels, self.shrink)
        return MethodLoss(losses.mean(), boxes)

    def small_box(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Centre and radius of the box around each image's adversarial example."""
        tau = self.tau_ratio * batch.eps
        if self.tau_ratio == 1:
            return batch.images, torch.ones_like(batch.images[:1]) * tau
        delta = pgd(
            *(batch.frozen(), batch.images, batch.labels, batch.eps, self.attack),
            clip=batch.clip,
            generator=batch.generator,
        )
        return self._inside(batch, batch.images + delta, tau)

    @staticmethod
    def _inside(batch: Batch, centre: Tensor, tau: Tensor | float) -> tuple[Tensor, Tensor]:
        """Centre and radius of the small box in the (clipped) eps-box; where that is narrower than 2 tau, all of it."""
        lower, upper = batch.images - batch.eps, batch.images + batch.eps
        radius = torch.ones_like(centre[:1]) * tau
        if batch.clip:
            lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
            radius = ((upper - lower) / 2).clamp(max=tau)
        return torch.minimum(torch.maximum(centre, lower + radius), upper - radius), radius
