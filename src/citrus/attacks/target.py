"""The universal attack of somebody who wants one class: as many images as possible are to be taken for it."""

import torch
from torch import Tensor

from citrus.attacks.ascent import Ascent, ascend
from citrus.attacks.pgd import Model, uniform
from citrus.bounds.margins import margins

SHARES = (0.01, 0.1, 1.0)
"""Restart r counts distances in this share of the spread of an image's scores, r modulo their number."""
MOMENTUM = (0.75,)


def attack_target(
    model: Model,
    images: Tensor,
    label: int,
    eps: float,
    settings: Ascent,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One perturbation (C, H, W), |delta| <= eps, with which as many images as possible are taken for class `label`.

    Those that are nearest to it pull most, those that are taken for it no longer do.
    """
    wanted = torch.full((len(images),), label, device=images.device)
    tiny = torch.finfo(images.dtype).tiny

    def start() -> Tensor:
        return uniform((1, *images.shape[1:]), eps, images, generator)

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        logits = model(images + delta)
        missing = -margins(logits, wanted).amin(1)
        length = SHARES[restart % len(SHARES)] * logits.detach().std(1).clamp(min=tiny)
        loss = -(missing.relu() / length).log1p().sum()
        return loss.view(1), (missing < 0).sum().view(1).to(images.dtype)

    momentum = settings.momentum or MOMENTUM
    return ascend(start, objective, eps, Ascent(**{**vars(settings), "momentum": momentum}))[0]
