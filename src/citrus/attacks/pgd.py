"""PGD: the strongest perturbation found for each image by itself, or for each of many, perhaps overlapping, sets."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.attacks.ascent import Ascent, ascend
from citrus.bounds.margins import margins

Model = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
"""From class scores and labels to one number per image."""


def fooled(logits: Tensor, labels: Tensor) -> Tensor:
    """Which images have a margin that is not positive. Written so that a NaN counts as fooled."""
    return ~(margins(logits, labels).amin(1) > 0)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each image by itself."""
    return F.cross_entropy(logits, labels, reduction="none")


def uniform(shape: tuple[int, ...], radius: Tensor | float, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform noise in the box of `radius`, laid out in memory as `like` is."""
    channels_last = len(shape) == like.dim() == 4 and not like.is_contiguous()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    noise = torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout).uniform_(generator=generator)
    return (2 * noise - 1) * radius


def pgd(
    model: Model,
    images: Tensor,
    labels: Tensor,
    radius: Tensor | float,
    settings: Ascent,
    *,
    clip: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Perturbations (n, C, H, W) within `radius` that fool, or else raise each image's cross-entropy most.

    `clip` keeps the perturbed image in [0, 1]; without it the perturbation alone is bounded.
    """

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        logits = model(images + delta)
        return cross_entropy(logits, labels), fooled(logits.detach(), labels).to(images.dtype)

    def inside(delta: Tensor) -> Tensor:
        return (images + delta).clamp(0, 1) - images

    start = partial(uniform, tuple(images.shape), radius, images, generator)
    return ascend(start, objective, radius, settings, inside if clip else None)


def common_pgd(
    model: Model,
    images: Tensor,
    labels: Tensor,
    sets: Tensor,
    radius: Tensor | float,
    settings: Ascent,
    *,
    clip: bool = False,
    generator: torch.Generator | None = None,
    loss: Loss = cross_entropy,
) -> Tensor:
    """Perturbations (sets, C, H, W) within `radius`: each fools as many images of its set as it can.

    `sets` (sets, members) holds numbers of images. The sum of the members' losses is followed, and decides between
    iterates that fool equally many. `clip` cuts the perturbed images to [0, 1], not the perturbation: where one image
    has no room another may.
    """
    members = images[sets]
    flat_labels = labels[sets].flatten()

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        points = members + delta[:, None]
        logits = model((points.clamp(0, 1) if clip else points).flatten(0, 1))
        wrong = fooled(logits.detach(), flat_labels).to(images.dtype)
        return loss(logits, flat_labels).view_as(sets).sum(1), wrong.view_as(sets).sum(1)

    start = partial(uniform, (len(sets), *images.shape[1:]), radius, images, generator)
    return ascend(start, objective, radius, settings)
