"""Cross-entropy at one point per image: the image itself, or where an attack moves it.

Standard training, adversarial training (Madry et al., ICLR 2018), and shared adversarial training (Mummadi et al., ICCV
2019), whose attack seeks one perturbation for each heap of a batch's images.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.attacks import Ascent, clipped_cross_entropy
from citrus.errors import CitrusError
from citrus.methods.base import Batch, Method, MethodLoss


@dataclass(frozen=True)
class Standard(Method):
    """Cross-entropy on clean images; no robustness is asked for."""

    name: ClassVar[str] = "standard"

    def loss(self, batch: Batch) -> MethodLoss:
        return MethodLoss(batch.clean_loss)


@dataclass(frozen=True)
class PGD(Method):
    """The strongest perturbation found for each image by itself.

    A single step of size 2 reaches the corners of the box: FGSM with random start.
    """

    name: ClassVar[str] = "pgd"

    attack: Ascent = field(default_factory=lambda: Ascent(steps=7, step_size=0.25, decay_at=(), keep="last"))

    def loss(self, batch: Batch) -> MethodLoss:
        points = batch.images + batch.perturbations(batch.eps, self.attack)
        return MethodLoss(F.cross_entropy(batch.graph(points), batch.labels))


@dataclass(frozen=True)
class Shared(Method):
    """Consecutive images of the (shuffled) batch form heaps; a heap of one image is adversarial training.

    The authors mix in the clean loss with weight 1 - sigma: that is `clean_weight` of the run.
    """

    name: ClassVar[str] = "shared"
    limits: ClassVar = {"limit": "(0, inf]"}

    heap_size: int = 5
    """Images that share a perturbation (the authors' sharedness s); 0 means the whole batch is one heap."""
    limit: float = -math.log(0.2)
    """Cross-entropy beyond which an image no longer pulls at its heap's perturbation."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=4, step_size=0.5, decay_at=(), keep="last"))

    def check(self, batch_size: int) -> None:
        super().check(batch_size)
        size = self.heap_size or batch_size
        if size < 1 or size > batch_size:
            raise CitrusError(f"heap_size must be 0 (all) to {batch_size}, the batch_size, got {size}.")
        if batch_size % size:
            raise CitrusError(f"batch_size {batch_size} is no multiple of heap_size {size}: no heap may be cut.")

    def loss(self, batch: Batch) -> MethodLoss:
        delta = self.perturbations(batch)
        points = batch.clipped(batch.images + delta.repeat_interleave(len(batch.images) // len(delta), 0))
        return MethodLoss(F.cross_entropy(batch.graph(points), batch.labels))

    def perturbations(self, batch: Batch) -> Tensor:
        """One perturbation per heap, (heaps, C, H, W), that raises its images' summed loss."""
        count = len(batch.images)
        heaps = torch.arange(count, device=batch.images.device).view(-1, self.heap_size or count)
        return batch.perturbations(batch.eps, self.attack, heaps, clipped_cross_entropy(self.limit))
