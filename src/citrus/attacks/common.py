"""Common perturbations: one for every image of a set, for many overlapping sets at once."""

import torch
import torch.nn.functional as F
from torch import Tensor

from citrus.attacks.ascent import Ascent, ascend
from citrus.attacks.pgd import Model, fooled, uniform


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
) -> Tensor:
    """Perturbations (sets, C, H, W) within `radius`: each fools as many images of its set as it can.

    `sets` (sets, members) holds numbers of images. The sum of the members' cross-entropies is followed, and decides
    between iterates that fool equally many. `clip` cuts the perturbed images to [0, 1], not the perturbation: where one
    image has no room another may.
    """
    members = images[sets]
    flat_labels = labels[sets].flatten()

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        points = members + delta[:, None]
        points = points.clamp(0, 1) if clip else points
        logits = model(points.flatten(0, 1))
        loss = F.cross_entropy(logits, flat_labels, reduction="none")
        wrong = fooled(logits.detach(), flat_labels).to(images.dtype)
        return loss.view_as(sets).sum(1), wrong.view_as(sets).sum(1)

    def project(delta: Tensor) -> Tensor:
        return delta.clamp(-radius, radius)  # type: ignore[arg-type]

    def start(restart: int) -> Tensor:
        return uniform((len(sets), *images.shape[1:]), radius, images, generator)

    return ascend(start, objective, project, radius, settings)
