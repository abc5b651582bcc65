"""IBP training with short warm-up (Shi et al., NeurIPS 2021): the interval loss of the whole eps-box."""

from dataclasses import dataclass
from typing import ClassVar

from citrus.methods.base import Batch, Method, MethodLoss, box_losses


@dataclass(frozen=True)
class IBP(Method):
    """One box per image: all of its eps-neighbourhood."""

    name: ClassVar[str] = "ibp"
    certified: ClassVar[bool] = True

    def loss(self, batch: Batch) -> MethodLoss:
        losses, boxes = box_losses(batch, batch.images, batch.eps, batch.labels)
        return MethodLoss(losses.mean(), boxes)
