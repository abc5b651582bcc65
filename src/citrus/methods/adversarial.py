"""Cross-entropy at one point per image: the image itself, or where an attack moves it.

Standard training, adversarial training (Madry et al., ICLR 2018), and shared adversarial training (Mummadi et al., ICCV
2019), whose attack seeks one perturbation for each heap of a batch's images.

Universal adversarial training (Shafahi et al., AAAI 2020) keeps one perturbation for all images from step to step. It
climbs the mean of min(cross-entropy, limit) by sign steps while the weights descend the cross-entropy at the same
perturbed images. Class-wise UAT (Benz et al., ICME 2021) keeps one perturbation for each class.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.attacks import Ascent, clipped_cross_entropy, within
from citrus.errors import CitrusError
from citrus.methods.base import Batch, Method, MethodLoss
from citrus.networks import Graph


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


@dataclass(frozen=True)
class UAT(Method):
    """One persistent perturbation. Its state, `delta` (perturbations, C, H, W), starts at 0."""

    name: ClassVar[str] = "uat"
    per_class: ClassVar[bool] = False
    """Whether every class has a perturbation of its own."""
    limits: ClassVar = {"step_size": "(0, inf)", "limit": "(0, inf]"}

    variant: Literal["alternating", "low-cost"] = "alternating"
    """alternating: delta takes its step first, by a pass of its own. low-cost: the weights' backward pass serves both,
    so that the weights meet the delta of the step before."""
    step_size: float = 1.0
    """Step of delta as a share of eps. Steps much smaller than eps lag behind the weights and defend less."""
    limit: float = 9.0
    """Cross-entropy beyond which an image no longer pulls at delta."""

    def initial_state(self, graph: Graph) -> dict[str, Tensor]:
        weight = next(v for node in graph.nodes for v in vars(node.op).values() if isinstance(v, Tensor))
        return {"delta": weight.new_zeros(graph.classes if self.per_class else 1, *graph.input_shape)}

    def loss(self, batch: Batch) -> MethodLoss:
        low_cost = self.variant == "low-cost"
        if not low_cost:
            self._climb(batch, self._slope(batch))
        inputs = self._perturbed(batch).requires_grad_(low_cost)
        losses = F.cross_entropy(batch.graph(batch.clipped(inputs)), batch.labels, reduction="none")
        if low_cost:  # the state moves when the loop calls backward()
            pulling = (losses.detach() <= self.limit).to(inputs.dtype).view(-1, 1, 1, 1)
            inputs.register_hook(lambda gradient: self._climb(batch, pulling * gradient))
        return MethodLoss(losses.mean())

    def _slope(self, batch: Batch) -> Tensor:
        """Gradient of the clipped loss in each perturbed image."""
        inputs = self._perturbed(batch).requires_grad_()
        losses = clipped_cross_entropy(self.limit)(batch.frozen()(batch.clipped(inputs)), batch.labels)
        return torch.autograd.grad(losses.sum(), inputs)[0]

    def _perturbed(self, batch: Batch) -> Tensor:
        delta = within(batch.state["delta"], batch.eps)
        return batch.images + (delta[batch.labels] if self.per_class else delta)

    @torch.no_grad()
    def _climb(self, batch: Batch, gradient: Tensor) -> None:
        """One sign step of the state, given the gradient of the loss in each perturbed image."""
        delta, eps = batch.state["delta"], batch.eps
        if self.per_class:
            # A product, not index_add: on a GPU that adds in another order each time. No member: sum 0, no step.
            member = torch.arange(len(delta), device=delta.device)[:, None] == batch.labels
            slope = (member.to(gradient.dtype) @ gradient.flatten(1)).view_as(delta)
        else:
            slope = gradient.sum(0, keepdim=True)
        delta.copy_(within(within(delta, eps) + self.step_size * eps * slope.sign(), eps))


@dataclass(frozen=True)
class CWUAT(UAT):
    """Each image meets the perturbation of its true class; a class that a batch lacks keeps its own as it is."""

    name: ClassVar[str] = "cw_uat"
    per_class: ClassVar[bool] = True
