"""PGD: the strongest perturbation found for each image by itself."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.attacks.ascent import Ascent, ascend
from citrus.bounds.margins import margins

Model = Callable[[Tensor], Tensor]


def fooled(logits: Tensor, labels: Tensor) -> Tensor:
    """(n,): some margin is not positive. Written so that a NaN counts as fooled."""
    return ~(margins(logits, labels).amin(1) > 0)


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

    def project(delta: Tensor) -> Tensor:
        delta = delta.clamp(-radius, radius)  # type: ignore[arg-type]
        return (images + delta).clamp(0, 1) - images if clip else delta

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        logits = model(images + delta)
        return F.cross_entropy(logits, labels, reduction="none"), fooled(logits.detach(), labels).to(images.dtype)

    def start(restart: int) -> Tensor:
        return uniform(tuple(images.shape), radius, images, generator)

    return ascend(start, objective, project, radius, settings)
