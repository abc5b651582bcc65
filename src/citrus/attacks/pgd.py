"""PGD: the strongest perturbation found for each image by itself, or for each of many, perhaps overlapping, sets."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.attacks.ascent import Ascent, ascend
from citrus.bounds import interval, margin_rows, margins
from citrus.networks import Graph

Model = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
"""From class scores and labels to one number per image."""


def fooled(logits: Tensor, labels: Tensor) -> Tensor:
    """Which images have a margin that is not positive. Written so that a NaN counts as fooled."""
    return ~(margins(logits, labels).amin(1) > 0)


def highest_margins(graph: Graph, points: Tensor, labels: Tensor) -> Tensor:
    """Upper bounds of the margins at points (n, C, H, W) in float64, with all rounding in them: (n, wrong labels).

    `fooled` says what this computer answers; an image whose margin is not positive whatever is rounded has one <= 0.
    """
    rounded = points.abs() * torch.finfo(points.dtype).eps  # the point may be a rounded sum
    return interval(graph, points, rounded, margin_rows(labels, graph.classes, points.dtype)).upper


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
    sets: Tensor | None = None,
    clip: bool = False,
    generator: torch.Generator | None = None,
    loss: Loss = cross_entropy,
) -> Tensor:
    """Perturbations (n, C, H, W) within `radius` that fool, or else raise each image's loss most.

    `sets` (n, members) holds numbers of images that share a perturbation; without it each image has its own. A
    perturbation fools as many images of its set as it can; between equally many the sum of their losses decides.

    `clip` keeps perturbed images in [0, 1]. A shared perturbation itself is not cut: where one image has no room
    another may. Without `clip` the perturbation alone is bounded.
    """
    alone = sets is None
    members, wanted = (images[:, None], labels[:, None]) if alone else (images[sets], labels[sets])

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        points = members + delta[:, None]
        logits = model((points.clamp(0, 1) if clip and not alone else points).flatten(0, 1))
        wrong = fooled(logits.detach(), wanted.flatten()).to(images.dtype)
        return loss(logits, wanted.flatten()).view_as(wanted).sum(1), wrong.view_as(wanted).sum(1)

    def inside(delta: Tensor) -> Tensor:
        return (images + delta).clamp(0, 1) - images

    start = partial(uniform, (len(wanted), *images.shape[1:]), radius, images, generator)
    return ascend(start, objective, radius, settings, inside if clip and alone else None)
