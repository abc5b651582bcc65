"""What a universal attack found, as one file from which pictures and tables can be made without data or network.

delta (groups, C, H, W); for every attacked image its group, label, prediction without (clean) and with (perturbed) the
perturbation, and whether it is fooled; and the images of the group that suffers most (shown: their places, images).
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.attacks import UniversalResult
from citrus.data import Dataset, as_float
from citrus.files import save_tensors
from citrus.inputs import eps_in_name, parse_eps
from citrus.networks import Graph
from citrus.training.evaluation import Evaluation, evaluate

MOST_IMAGES = 16  # kept of those that the perturbation flips, and as many of those that it does not


def uap_file(out: str | Path, eps: float) -> Path:
    """Where a folder keeps the perturbations of a radius."""
    return Path(out) / "uap" / f"{eps_in_name(eps)}.safetensors"


def evaluate_into(
    out: str | Path,
    network: nn.Module | Graph,
    test: Dataset,
    eps: float | str,
    *,
    group_size: int = 5,
    attacked: int | None = None,
    clip: bool = False,
    seed: int = 0,
) -> Evaluation:
    """Evaluate a network on the images of a data set, and keep the perturbations that were found in a folder."""
    eps, images = parse_eps(eps), as_float(test.images)
    result, attack = evaluate(
        network, images, test.labels, eps, group_size=group_size, attacked=attacked, clip=clip, seed=seed
    )
    save_attack(uap_file(out, eps), attack, network, test, {"eps": eps, "group_size": group_size})
    return result


@torch.no_grad()
def save_attack(
    path: Path, attack: UniversalResult, network: nn.Module | Graph, test: Dataset, about: dict[str, Any]
) -> None:
    """Write what was found; the first `len(attack.groups)` images of the data set are those that were attacked."""
    count = len(attack.groups)
    x, y = as_float(test.images[:count]), test.labels[:count]
    clean = _predictions(network, x)
    inside = attack.groups == attack.worst_group(clean == y)
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
    save_tensors(path, tensors, {**about, "classes": list(test.classes)})


def _predictions(network: nn.Module | Graph, images: Tensor) -> Tensor:
    """The class that each image is taken for."""
    return torch.cat([network(x).argmax(1) for x in images.split(500)])
