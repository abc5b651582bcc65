"""How good a network is: clean, proved by interval bounds, attacked image by image, and attacked universally.

What the universal attack finds can be kept in FOLDER/uap/EPS.safetensors, for pictures and tables without data or
network: delta (groups, C, H, W); for every attacked image its group, label, prediction without (clean) and with
(perturbed) the perturbation, and whether it is fooled; and the images of the group that suffers most (shown: their
places, images).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.attacks import Ascent, UniversalResult, consecutive_groups, fooled, pgd, universal_pgd
from citrus.bounds import interval, margin_rows
from citrus.data import Dataset, as_float
from citrus.errors import CitrusError, SoundnessError
from citrus.files import save_tensors
from citrus.inputs import check_images, eps_in_name, parse_eps
from citrus.networks import Graph, graph
from citrus.networks.precision import true_float32

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
    pgd_steps: int
    universal_restarts: int
    seconds: float


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
) -> tuple[Evaluation, UniversalResult]:
    """Measure a network in eval mode. The attacks see the first `attacked` images, in groups in the order given.

    `clip` concerns certification and PGD per image; a universal perturbation is never clipped.
    """
    started, eps = time.perf_counter(), parse_eps(eps)
    plain = graph(network, tuple(images.shape[1:])).map(Tensor.detach)
    check_images(images, labels, plain.classes, plain.input_shape)
    count = len(images) if attacked is None else min(attacked, len(images))
    if count < 1:
        raise CitrusError(f"The attacks need at least one image, got {count}.")
    proved = ibp_certified(plain, images, labels, eps, clip)
    generator = torch.Generator(images.device).manual_seed(seed)
    x, y = images[:count], labels[:count]
    with true_float32():  # as the proofs: a margin smaller than TF32's rounding must not look broken
        alone = _pgd_fooled(plain, x, y, eps, clip, generator)
        together = _universal_attack(plain, x, y, eps, group_size, generator)
    broken = proved[:count] & (alone if clip else alone | together.fooled)
    if broken.any():
        raise SoundnessError(f"Image {int(broken.nonzero()[0])} is certified at eps {eps} and yet an attack fools it.")
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
        pgd_steps=PGD_40.steps,
        universal_restarts=UNIVERSAL.restarts,
        seconds=time.perf_counter() - started,
    )
    return result, together


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


def uap_file(out: str | Path, eps: float) -> Path:
    """Where a folder keeps the perturbations of a radius."""
    return Path(out) / "uap" / f"{eps_in_name(eps)}.safetensors"


def save_attack(
    path: Path, attack: UniversalResult, network: nn.Module | Graph, test: Dataset, about: dict[str, Any]
) -> None:
    """Write what was found; the first `len(attack.groups)` images of the data set are those that were attacked."""
    count = len(attack.groups)
    x, y = as_float(test.images[:count]), test.labels[:count]
    clean = predictions(network, x)
    inside = attack.groups == attack.worst_group(clean == y)
    flipped = inside & (clean == y) & attack.fooled
    shown = torch.cat([mask.nonzero().flatten()[:MOST_IMAGES] for mask in (flipped, inside & ~flipped)])
    tensors = {
        "delta": attack.delta,
        "groups": attack.groups,
        "labels": y,
        "clean": clean,
        "perturbed": predictions(network, x + attack.delta[attack.groups]),
        "fooled": attack.fooled,
        "shown": shown,
        "images": x[shown],
    }
    save_tensors(path, tensors, {**about, "classes": list(test.classes)})


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


def _pgd_fooled(
    plain: Graph, images: Tensor, labels: Tensor, eps: float, clip: bool, generator: torch.Generator
) -> Tensor:
    """For which images 40 steps of PGD find a perturbation of their own."""
    parts = []
    for x, y in _chunks(images, labels):
        delta = pgd(plain, x, y, eps, PGD_40, clip=clip, generator=generator)
        parts.append(fooled(plain(x + delta), y))
    return torch.cat(parts)


def _universal_attack(
    plain: Graph, images: Tensor, labels: Tensor, eps: float, group_size: int, generator: torch.Generator
) -> UniversalResult:
    """One perturbation per group of images in order, many groups at a time."""
    groups = consecutive_groups(len(images), group_size, images.device)
    parts = []
    for x, y in _chunks(images, labels, max(1, CHUNK // group_size) * group_size):
        parts.append(universal_pgd(plain, x, y, groups[: len(x)], eps, UNIVERSAL, generator))
    return UniversalResult(torch.cat([p.delta for p in parts]), groups, torch.cat([p.fooled for p in parts]))


def _chunks(images: Tensor, labels: Tensor, size: int = CHUNK) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(images.split(size), labels.split(size), strict=True)
