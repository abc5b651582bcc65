"""How good a network is: clean, proved by interval bounds, attacked image by image, and attacked universally."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from citrus.attacks import Ascent, UniversalResult, consecutive_groups, fooled, pgd, universal_pgd
from citrus.bounds import interval, margin_rows
from citrus.errors import CitrusError, SoundnessError
from citrus.inputs import check_images, parse_eps
from citrus.networks import Graph, graph
from citrus.networks.precision import true_float32

CHUNK = 500
PGD_40 = Ascent(steps=40, restarts=1)
UNIVERSAL = Ascent(steps=60, restarts=4)


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


@torch.no_grad()
def clean_accuracy(network: nn.Module | Graph, images: Tensor, labels: Tensor) -> float:
    """Percent of images classified right."""
    with true_float32():
        return percent(torch.cat([network(x).argmax(1) == y for x, y in _chunks(images, labels)]))


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
    eps = parse_eps(eps)
    plain = graph(network, tuple(images.shape[1:])).map(Tensor.detach)
    check_images(images, labels, plain.classes, plain.input_shape)
    count = len(images) if attacked is None else min(attacked, len(images))
    if count < 1:
        raise CitrusError(f"The attacks need at least one image, got {count}.")
    started = time.perf_counter()
    proved = ibp_certified(network, images, labels, eps, clip)
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
        clean=clean_accuracy(network, images, labels),
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
    chunk = max(1, CHUNK // group_size) * group_size
    parts = []
    for x, y in _chunks(images, labels, chunk):
        groups = consecutive_groups(len(x), group_size, x.device)
        parts.append(universal_pgd(plain, x, y, groups, eps, UNIVERSAL, generator))
    delta, wrong = torch.cat([p.delta for p in parts]), torch.cat([p.fooled for p in parts])
    return UniversalResult(delta, consecutive_groups(len(images), group_size, images.device), wrong)


def _chunks(images: Tensor, labels: Tensor, size: int = CHUNK) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(images.split(size), labels.split(size), strict=True)


def percent(mask: Tensor) -> float:
    return 100 * mask.double().mean().item()
