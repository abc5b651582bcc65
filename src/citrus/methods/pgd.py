"""Adversarial training (Madry et al., ICLR 2018): cross-entropy at the strongest perturbation found for each image."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F

from citrus.attacks import Ascent
from citrus.methods.base import Batch, Method, MethodLoss


@dataclass(frozen=True)
class PGD(Method):
    """One attacked point per image. A single step of size 2 reaches the corners of the box: FGSM with random start."""

    name: ClassVar[str] = "pgd"
    certified: ClassVar[bool] = False

    attack: Ascent = field(default_factory=lambda: Ascent(steps=7, step_size=0.25, decay_at=(), keep="last"))

    def loss(self, batch: Batch) -> MethodLoss:
        points = batch.images + batch.perturbations(batch.eps, self.attack)
        return MethodLoss(F.cross_entropy(batch.graph(points), batch.labels))
