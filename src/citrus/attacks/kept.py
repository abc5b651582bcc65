"""What a universal attack found, in a file: for pictures and tables without data or network.

A file holds delta (groups, C, H, W); for every attacked image its group, label, prediction without (clean) and with
(perturbed) the perturbation, and whether it is fooled; and the images of the group that suffers most (shown: their
places, images).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.attacks.universal import UniversalResult
from citrus.files import save_tensors
from citrus.networks import Graph
from citrus.networks.kernels import true_float32

CHUNK = 500  # images at a time
MOST_IMAGES = 16  # kept of those that the perturbation flips, and as many of those that it does not


def save_attack(
    path: Path,
    attack: UniversalResult,
    network: nn.Module | Graph,
    images: Tensor,
    labels: Tensor,
    about: Mapping[str, Any],
) -> None:
    """Write what an attack on these images found."""
    clean = predictions(network, images)
    inside = attack.groups == attack.worst_group(clean == labels)
    flipped = inside & (clean == labels) & attack.fooled
    shown = torch.cat([mask.nonzero().flatten()[:MOST_IMAGES] for mask in (flipped, inside & ~flipped)])
    tensors = {
        "delta": attack.delta,
        "groups": attack.groups,
        "labels": labels,
        "clean": clean,
        "perturbed": predictions(network, images + attack.delta[attack.groups]),
        "fooled": attack.fooled,
        "shown": shown,
        "images": images[shown],
    }
    save_tensors(path, tensors, dict(about))


@torch.no_grad()
def predictions(network: nn.Module | Graph, images: Tensor) -> Tensor:
    """The class that each image is taken for."""
    with true_float32():
        return torch.cat([network(x).argmax(1) for x in images.split(CHUNK)])
