"""The universal attack: one perturbation for all images of a group."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.attacks.ascent import Ascent, ascend
from citrus.attacks.pgd import Loss, Model, cross_entropy, fooled, uniform
from citrus.bounds.margins import margins
from citrus.errors import CitrusError


def hinge(kappa: float) -> Loss:
    """-relu(smallest margin + kappa): images that are wrong by kappa already no longer pull."""
    return lambda logits, labels: -(margins(logits, labels).amin(1) + kappa).relu()


def clipped_cross_entropy(limit: float) -> Loss:
    """Cross-entropy up to a limit, so that no single image dominates its group."""
    return lambda logits, labels: cross_entropy(logits, labels).clamp(max=limit)


def nearest(share: float) -> Loss:
    """-log(1 + smallest margin / T), T a share of the spread of an image's scores: the nearer an image is to falling
    the more it pulls, and one that has fallen no longer does. An attacker who cannot have all images of a group does
    not waste the perturbation on those that he will not get."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        spread = logits.detach().std(1).clamp(min=torch.finfo(logits.dtype).tiny)
        return -(margins(logits, labels).amin(1).relu() / (share * spread)).log1p()

    return loss


LOSSES: tuple[Loss, ...] = (nearest(0.01), clipped_cross_entropy(3.0), nearest(0.003), hinge(0.5))
"""Restart r uses loss r modulo their number: each finds perturbations that the others miss."""
MOMENTA = (0.0, 0.75, 0.75, 0.75)
"""The momentum of restart r, where the settings name none."""


@dataclass(frozen=True)
class UniversalResult:
    """One perturbation per group and which images it fools."""

    delta: Tensor
    """The perturbation of each group, (groups, C, H, W), |delta| <= eps."""
    groups: Tensor
    """The group of each image."""
    fooled: Tensor
    """Whether each image's smallest margin is not positive under its group's perturbation."""

    @property
    def accuracy(self) -> float:
        """Share of the images that are still classified right."""
        return 1 - self.fooled.float().mean().item()

    def worst_group(self, right: Tensor) -> int:
        """The group in which most images that are classified `right` without a perturbation turn wrong."""
        turned = torch.zeros(len(self.delta), device=right.device)
        return int(turned.index_add(0, self.groups, (right & self.fooled).float()).argmax())


def consecutive_groups(count: int, size: int, device: torch.device | None = None) -> Tensor:
    """Group numbers of `count` images in order, `size` to a group; the last group may be smaller."""
    if size < 1:
        raise CitrusError(f"A group holds at least one image, got {size}.")
    return torch.arange(count, device=device) // size


def universal_pgd(
    model: Model,
    images: Tensor,
    labels: Tensor,
    groups: Tensor,
    eps: float,
    settings: Ascent,
    generator: torch.Generator | None = None,
) -> UniversalResult:
    """Search one perturbation per group that fools as many of its images as possible.

    The perturbed image is not clipped to [0, 1]: clipping would turn one perturbation into a different one per image.
    """
    count = int(groups.max()) + 1
    sums = torch.zeros(count, dtype=images.dtype, device=images.device)

    def start() -> Tensor:
        # All groups start from the same noise: what is found for a group must not depend on which groups are beside it.
        return uniform((1, *images.shape[1:]), eps, images, generator).repeat(count, *[1] * (images.dim() - 1))

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        logits = model(images + delta[groups])
        loss = LOSSES[restart % len(LOSSES)](logits, labels)
        wrong = fooled(logits.detach(), labels).to(sums.dtype)
        return sums.index_add(0, groups, loss), sums.index_add(0, groups, wrong)

    delta = ascend(start, objective, eps, replace(settings, momentum=settings.momentum or MOMENTA))
    with torch.no_grad():
        return UniversalResult(delta, groups, fooled(model(images + delta[groups]), labels))
