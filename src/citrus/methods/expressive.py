"""Expressive losses (De Palma et al., ICLR 2024): from adversarial training to IBP by one number, alpha.

With m_adv the margins of the true class at an attacked image, m_ibp their lower bounds in the whole eps-box, and
L(m) = log(1 + sum exp(-m)) averaged over the batch:
    MTL-IBP   alpha L(m_ibp) + (1 - alpha) L(m_adv)
    CC-IBP    L(alpha m_ibp + (1 - alpha) m_adv)
    Exp-IBP   L(m_ibp)^alpha L(m_adv)^(1 - alpha)
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from citrus.attacks import Ascent
from citrus.bounds import margin_loss, margins
from citrus.methods.base import Batch, Method, MethodLoss, box_bounds


@dataclass(frozen=True)
class Expressive(Method):
    """What the three share; each says how it mixes bounds and attacked margins."""

    certified: ClassVar[bool] = True
    limits: ClassVar = {"alpha": "[0, 1]", "attack_factor": "[0, inf)"}

    alpha: float = 0.5
    """Weight of the interval bounds: 1 is IBP, 0 is adversarial training."""
    attack_factor: float = 1.0
    """Radius of the attack as a multiple of eps; 0 mixes the bounds with the clean images."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=1, step_size=10.0, decay_at=(), keep="last"))

    def loss(self, batch: Batch) -> MethodLoss:
        bounds, boxes = box_bounds(batch, *batch.box(batch.images, batch.eps), batch.labels)
        if self.alpha == 1:
            return MethodLoss(margin_loss(bounds.lower).mean(), boxes)
        points = batch.images
        if self.attack_factor:
            points = points + batch.perturbations(self.attack_factor * batch.eps, self.attack)
        return MethodLoss(self.mix(bounds.lower, margins(batch.graph(points), batch.labels)), boxes)

    def mix(self, bounds: Tensor, attacked: Tensor) -> Tensor:
        """The loss from lower bounds on the margins and the margins at attacked points, both (images, classes - 1)."""
        raise NotImplementedError


@dataclass(frozen=True)
class MTLIBP(Expressive):
    """The two losses are mixed: two tasks learned at once."""

    name: ClassVar[str] = "mtl_ibp"

    def mix(self, bounds: Tensor, attacked: Tensor) -> Tensor:
        return self.alpha * margin_loss(bounds).mean() + (1 - self.alpha) * margin_loss(attacked).mean()


@dataclass(frozen=True)
class CCIBP(Expressive):
    """The margins are mixed: a convex combination inside the loss."""

    name: ClassVar[str] = "cc_ibp"

    def mix(self, bounds: Tensor, attacked: Tensor) -> Tensor:
        return margin_loss(self.alpha * bounds + (1 - self.alpha) * attacked).mean()


@dataclass(frozen=True)
class ExpIBP(Expressive):
    """The logarithms of the two losses are mixed. As in the authors' code, each loss is the batch's mean."""

    name: ClassVar[str] = "exp_ibp"

    def mix(self, bounds: Tensor, attacked: Tensor) -> Tensor:
        least = torch.finfo(bounds.dtype).tiny  # a power below 1 has no slope at 0
        certified, adversarial = (margin_loss(m).mean().clamp(min=least) for m in (bounds, attacked))
        return certified**self.alpha * adversarial ** (1 - self.alpha)
