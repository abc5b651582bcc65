"""How good a network is: clean, proved by interval bounds, attacked image by image, and attacked universally.

What the universal attack finds can be kept in FOLDER/uap/EPS.safetensors, for pictures and tables without data or
network: delta (groups, C, H, W); for every attacked image its group, label, prediction without (clean) and with
(perturbed) the perturbation, and whether it is fooled; and the images of the group that suffers most (shown: their
places, images).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.attacks import Ascent, UniversalResult, consecutive_groups, fooled, pgd, universal_pgd
from citrus.bounds import interval, margin_rows
from citrus.errors import CitrusError, SoundnessError
from citrus.files import save_tensors
from citrus.inputs import check_images, eps_in_name, parse_eps
from citrus.networks import Graph, graph
from citrus.networks.kernels import true_float32

CHUNK = 500
PGD_40 = Ascent(steps=40, restarts=1)
UNIVERSAL = Ascent(steps=60, restarts=4)
MOST_IMAGES = 16  # kept of those that the perturbation flips, and as many of those that it does not


@dataclass(frozen=True)
class Evaluation:
    """Accuracies in percent of the images they were measured on."""

    eps: float
    clip: bool
    images: int
    clean: float
    ibp_certified: float
    attacked_images: int
    pgd: float
    universal: float
    group_size: int
    seconds: float
    pgd_steps: int = PGD_40.steps
    universal_restarts: int = UNIVERSAL.restarts


def evaluate(
    network: nn.Module | Graph,
    images: Tensor,
    labels: Tensor,
    eps: float | str,
    *,
    group_size: int = 5,
    attacked: int | None = None,
    clip: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
    classes: Sequence[str] = (),
) -> tuple[Evaluation, UniversalResult]:
    """Measure a network in eval mode. The attacks see the first `attacked` images, in groups in the order given.

    `clip` concerns certification and PGD per image; a universal perturbation is never clipped. A folder `out` keeps
    the universal perturbations, with the names of `classes`.
    """
    started, eps = time.perf_counter(), parse_eps(eps)
    plain = graph(network, tuple(images.shape[1:])).map(Tensor.detach)
    check_images(images, labels, plain.classes, plain.input_shape)
    count = len(images) if attacked is None else min(attacked, len(images))
    if count < 1:
        raise CitrusError(f"The attacks need at least one image, got {count}.")
    x, y = images[:count], labels[:count]
    proved = ibp_certified(plain, images, labels, eps, clip)
    alone, together = _attacks(plain, x, y, eps, group_size, clip, seed)
    broken = (proved[:count] & (alone if clip else alone | together.fooled)).nonzero()
    if len(broken):
        raise SoundnessError(f"Image {int(broken[0])} is certified at eps {eps} and yet an attack fools it.")
    result = Evaluation(
        eps=eps,
        clip=clip,
        images=len(images),
        clean=percent(predictions(network, images) == labels),
        ibp_certified=percent(proved),
        attacked_images=count,
        pgd=100 - percent(alone),
        universal=100 - percent(together.fooled),
        group_size=group_size,
        seconds=time.perf_counter() - started,
    )
    if out is not None:
        about = {"eps": eps, "group_size": group_size, "classes": list(classes)}
        save_attack(uap_file(out, eps), together, network, x, y, about)
    return result, together


def uap_file(out: str | Path, eps: float) -> Path:
    """Where a folder keeps the perturbations of a radius."""
    return Path(out) / "uap" / f"{eps_in_name(eps)}.safetensors"


def save_attack(
    path: Path,
    attack: UniversalResult,
    network: nn.Module | Graph,
    images: Tensor,
    labels: Tensor,
    about: dict[str, Any],
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
    save_tensors(path, tensors, about)


@torch.no_grad()
def predictions(network: nn.Module | Graph, images: Tensor) -> Tensor:
    """The class that each image is taken for."""
    with true_float32():
        return torch.cat([network(x).argmax(1) for x in images.split(CHUNK)])


@torch.no_grad()
def ibp_certified(network: nn.Module | Graph, images: Tensor, labels: Tensor, eps: float, clip: bool = False) -> Tensor:
    """Of which images every margin is proved positive on the whole eps-box (intersected with [0, 1] if `clip`)."""
    plain = graph(network, tuple(images.shape[1:]))
    proved = []
    with true_float32():
        for x, y in _chunks(images, labels):
            lower, upper = x - eps, x + eps
            if clip:
                lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
            rows = margin_rows(y, plain.classes, x.dtype)
            bounds = interval(plain, (lower + upper) / 2, (upper - lower) / 2, rows)
            proved.append((bounds.lower > 0).all(1))
    return torch.cat(proved)


def percent(mask: Tensor) -> float:
    return 100 * mask.double().mean().item()


def _attacks(
    plain: Graph, images: Tensor, labels: Tensor, eps: float, group_size: int, clip: bool, seed: int
) -> tuple[Tensor, UniversalResult]:
    """Which images 40 steps of PGD fool one by one, and one perturbation per group of images in order."""
    generator = torch.Generator(images.device).manual_seed(seed)
    groups = consecutive_groups(len(images), group_size, images.device)
    alone, together = [], []
    with true_float32():  # as the proofs: a margin smaller than TF32's rounding must not look broken
        for x, y in _chunks(images, labels):
            delta = pgd(plain, x, y, eps, PGD_40, clip=clip, generator=generator)
            alone.append(fooled(plain(x + delta), y))
        for x, y in _chunks(images, labels, max(1, CHUNK // group_size) * group_size):
            together.append(universal_pgd(plain, x, y, groups[: len(x)], eps, UNIVERSAL, generator))
    deltas, wrong = torch.cat([part.delta for part in together]), torch.cat([part.fooled for part in together])
    return torch.cat(alone), UniversalResult(deltas, groups, wrong)


def _chunks(images: Tensor, labels: Tensor, size: int = CHUNK) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(images.split(size), labels.split(size), strict=True)
