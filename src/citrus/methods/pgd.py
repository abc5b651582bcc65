"""Adversarial training (Madry et al., ICLR 2018): cross-entropy at the strongest perturbation found for each image."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from citrus.attacks import Ascent, pgd
from citrus.methods.base import Batch, Method, MethodLoss


def attacked_logits(batch: Batch, radius: Tensor | float, attack: Ascent) -> Tensor:
    """Class scores of each image under its own perturbation of at most `radius`."""
    delta = pgd(
        *(batch.frozen(), batch.images, batch.labels, radius, attack),
        clip=batch.clip,
        generator=batch.generator,
    )
    return batch.graph(batch.images + delta)


@dataclass(frozen=True)
class PGD(Method):
    """One attacked point per image. A single step of size 2 reaches the corners of the box: FGSM with random start."""

    name: ClassVar[str] = "pgd"
    certified: ClassVar[bool] = False

    attack: Ascent = field(default_factory=lambda: Ascent(steps=7, step_size=0.25, decay_at=(), keep="last"))

    def loss(self, batch: Batch) -> MethodLoss:
        return MethodLoss(F.cross_entropy(attacked_logits(batch, batch.eps, self.attack), batch.labels))
