"""Shared adversarial training (Mummadi et al., ICCV 2019): one perturbation for each heap of a batch's images.

The authors mix in the clean loss with weight 1 - sigma: that is `clean_weight` of the run.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from citrus.attacks import Ascent, ascend, fooled
from citrus.attacks.pgd import uniform
from citrus.attacks.universal import clipped_cross_entropy
from citrus.errors import CitrusError
from citrus.methods.base import Batch, Method, MethodLoss


@dataclass(frozen=True)
class Shared(Method):
    """Consecutive images of the (shuffled) batch form heaps; a heap of one image is adversarial training."""

    name: ClassVar[str] = "shared"
    certified: ClassVar[bool] = False

    heap_size: int = 5
    """Images that share a perturbation (the authors' sharedness s); 0 means the whole batch is one heap."""
    limit: float = -math.log(0.2)
    """Cross-entropy beyond which an image no longer pulls at its heap's perturbation."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=4, step_size=0.5, decay_at=(), keep="last"))

    def check(self, batch_size: int) -> None:
        size = self.heap_size or batch_size
        if size < 1 or size > batch_size:
            raise CitrusError(f"heap_size must be 0 (all) to {batch_size}, the batch_size, got {size}.")
        if batch_size % size:
            raise CitrusError(f"batch_size {batch_size} is no multiple of heap_size {size}: no heap may be cut.")
        if not self.limit > 0:
            raise CitrusError(f"limit must be positive, got {self.limit}.")

    def loss(self, batch: Batch) -> MethodLoss:
        delta = self.perturbations(batch)
        return MethodLoss(F.cross_entropy(batch.graph(self._perturbed(batch, delta)), batch.labels))

    def perturbations(self, batch: Batch) -> Tensor:
        """One perturbation per heap, (heaps, C, H, W), that raises its images' summed loss."""
        heaps = len(batch.images) // (self.heap_size or len(batch.images))
        model, labels, eps = batch.frozen(), batch.labels, batch.eps

        def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
            logits = model(self._perturbed(batch, delta))
            losses, wrong = clipped_cross_entropy(self.limit)(logits, labels), fooled(logits.detach(), labels)
            return losses.view(heaps, -1).sum(1), wrong.view(heaps, -1).sum(1)

        def start(restart: int) -> Tensor:
            return uniform((heaps, *batch.images.shape[1:]), eps, batch.images, batch.generator)

        def project(delta: Tensor) -> Tensor:
            return delta.clamp(-eps, eps)  # type: ignore[arg-type]

        return ascend(start, objective, project, eps, self.attack)

    @staticmethod
    def _perturbed(batch: Batch, delta: Tensor) -> Tensor:
        heaps = batch.images.view(len(delta), -1, *batch.images.shape[1:])
        return batch.clipped((heaps + delta[:, None]).flatten(0, 1))
