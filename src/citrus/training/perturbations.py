"""What a universal attack found, as one file from which pictures and tables can be made without data or network.

delta (groups, C, H, W); for every attacked image its group, label, prediction without (clean) and with (perturbed) the
perturbation, and whether it is fooled; and the images of the group that suffers most (shown: their places, images).
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from citrus.attacks import UniversalResult
from citrus.files import save_tensors

MOST_IMAGES = 16  # kept of those that the perturbation flips, and as many of those that it does not


@torch.no_grad()
def save_universal(
    path: Path,
    eps: float,
    group_size: int,
    classes: tuple[str, ...],
    attack: UniversalResult,
    images: Tensor,
    labels: Tensor,
    network: nn.Module,
) -> None:
    """Write uap/EPS.safetensors; the first `len(attack.groups)` images are those that were attacked."""
    count = len(attack.groups)
    x, y = images[:count], labels[:count]
    clean = _predictions(network, x)
    worst = attack.worst_group(clean == y)
    inside = attack.groups == worst
    flipped = inside & (clean == y) & attack.fooled
    shown = torch.cat([mask.nonzero().flatten()[:MOST_IMAGES] for mask in (flipped, inside & ~flipped)])
    tensors = {
        "delta": attack.delta,
        "groups": attack.groups,
        "labels": y,
        "clean": clean,
        "perturbed": _predictions(network, x + attack.delta[attack.groups]),
        "fooled": attack.fooled,
        "shown": shown,
        "images": x[shown],
    }
    save_tensors(path, tensors, {"eps": eps, "group_size": group_size, "classes": list(classes)})


def _predictions(network: nn.Module, images: Tensor) -> Tensor:
    """The class that each image is taken for."""
    return torch.cat([network(x).argmax(1) for x in images.split(500)])
