"""How good a network is: clean, proved by interval bounds, attacked image by image, and attacked universally."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.attacks import (
    Ascent,
    UniversalResult,
    consecutive_groups,
    fooled,
    highest_margins,
    pgd,
    universal_pgd,
    within,
)
from citrus.attacks.alarm import Alarm, save_alarm
from citrus.attacks.kept import CHUNK, predictions, save_attack
from citrus.attacks.whole import attack_all
from citrus.bounds import Box, interval, margin_rows, proves
from citrus.errors import CitrusError
from citrus.inputs import check_images, eps_in_name, parse_eps
from citrus.networks import Graph, graph
from citrus.networks.kernels import true_float32

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
    seconds: float
    pgd_steps: int = PGD_40.steps
    universal_restarts: int = UNIVERSAL.restarts
    errors: int = 0
    """Images a proof of which an attack broke, which is a bug: they do not count as certified."""


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
    name: str | None = None,
    starts: Sequence[Tensor] = (),
) -> tuple[Evaluation, UniversalResult]:
    """Measure a network in eval mode. The attacks see the first `attacked` images, in groups in the order given; one
    for all of them may begin at `starts`, perturbations that are known from elsewhere.

    `clip` concerns certification and PGD per image; a universal perturbation is never clipped. A folder `out` keeps the
    perturbations, with the names of `classes`, and proofs that an attack broke; `name` is where the network lies.
    """
    started, eps = time.perf_counter(), parse_eps(eps)
    plain = graph(network, tuple(images.shape[1:])).map(Tensor.detach)
    check_images(images, labels, plain.classes, plain.input_shape)
    count = min(len(images), len(images) if attacked is None else attacked)
    if count < 1:
        raise CitrusError(f"The attacks need at least one image, got {count}.")
    x, y = images[:count], labels[:count]
    proved = ibp_certified(plain, images, labels, eps, clip)
    alone, together = _attacks(plain, x, y, eps, group_size, clip, seed, starts)
    attacks = [alone] if clip else [together.delta[together.groups], alone]
    alarms = _alarms(plain, (x, y), attacks, proved[:count], eps)
    proved[[alarm.group for alarm in alarms]] = False
    result = Evaluation(
        eps=eps,
        clip=clip,
        images=len(images),
        clean=percent(predictions(network, images) == labels),
        ibp_certified=percent(proved),
        attacked_images=count,
        pgd=100 - percent(_fooled(plain, x + alone, y)),
        universal=100 - percent(together.fooled),
        group_size=group_size,
        seconds=time.perf_counter() - started,
        errors=len(alarms),
    )
    if out is not None:
        save_attack(uap_file(out, eps), together, network, x, y, _about(result, classes))
        _save_alarms(broken_folder(out, eps), alarms, name)
    return result, together


def _about(result: Evaluation, classes: Sequence[str]) -> dict[str, Any]:
    return {"eps": result.eps, "group_size": result.group_size, "classes": list(classes)}


def uap_file(out: str | Path, eps: float) -> Path:
    """Where a folder keeps the perturbations of a radius."""
    return Path(out) / "uap" / f"{eps_in_name(eps)}.safetensors"


def broken_folder(out: str | Path, eps: float) -> Path:
    """Where a folder keeps proofs that an attack broke."""
    return Path(out) / "broken" / eps_in_name(eps)


def _save_alarms(folder: Path, alarms: Sequence[Alarm], name: str | None) -> None:
    for alarm in alarms:
        save_alarm(folder / f"image-{alarm.group:05}.safetensors", replace(alarm, network=name or ""))


@torch.no_grad()
def ibp_certified(network: nn.Module | Graph, images: Tensor, labels: Tensor, eps: float, clip: bool = False) -> Tensor:
    """Of which images every margin is proved positive on the whole eps-box (intersected with [0, 1] if `clip`)."""
    plain = graph(network, tuple(images.shape[1:]))
    proved = []
    with true_float32():
        for x, y in _chunks(images, labels):
            lower, upper = x.double() - eps, x.double() + eps
            if clip:
                lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
            box = Box.between(lower, upper)
            bounds = interval(plain, box.centre, box.radius, margin_rows(y, plain.classes, x.dtype))
            proved.append(proves(bounds.lower).all(1))
    return torch.cat(proved)


def percent(mask: Tensor) -> float:
    return 100 * mask.double().mean().item()


def _attacks(
    plain: Graph,
    images: Tensor,
    labels: Tensor,
    eps: float,
    group_size: int,
    clip: bool,
    seed: int,
    starts: Sequence[Tensor],
) -> tuple[Tensor, UniversalResult]:
    """What 40 steps of PGD find for each image, and one perturbation per group of images in order."""
    generator = torch.Generator(images.device).manual_seed(seed)
    groups, alone = consecutive_groups(len(images), group_size, images.device), []
    with true_float32():  # as the proofs: a margin smaller than TF32's rounding must not look broken
        for x, y in _chunks(images, labels):
            alone.append(pgd(plain, x, y, eps, PGD_40, clip=clip, generator=generator))
        if group_size >= len(images):
            delta = attack_all(plain, images, labels, eps, UNIVERSAL, generator, starts)[None]
        else:
            parts = _chunks(images, labels, max(1, CHUNK // group_size) * group_size)
            found = [universal_pgd(plain, x, y, groups[: len(x)], eps, UNIVERSAL, generator) for x, y in parts]
            delta = torch.cat([part.delta for part in found])
    return torch.cat(alone), UniversalResult(delta, groups, _fooled(plain, images + delta[groups], labels))


@torch.no_grad()
def _fooled(plain: Graph, points: Tensor, labels: Tensor) -> Tensor:
    with true_float32():
        return torch.cat([fooled(plain(x), y) for x, y in _chunks(points, labels)])


def _alarms(
    plain: Graph, data: tuple[Tensor, Tensor], attacks: Sequence[Tensor], proved: Tensor, eps: float
) -> list[Alarm]:
    """Images that are proved and that a perturbation fools all the same, whatever is rounded: bugs."""
    images, labels = data
    found: dict[int, Alarm] = {}
    for deltas in (within(delta.double(), eps) for delta in attacks):
        which = (proved & _fooled(plain, images + deltas.to(images.dtype), labels)).nonzero().flatten()
        for some in which.split(CHUNK):
            points = images[some].double() + deltas[some]
            lost = (highest_margins(plain, points, labels[some]) <= 0).any(1)
            for place in some[lost].tolist():
                claim = f"Image {place} of the data set is certified alone by intervals, and yet an attack fools it."
                one = slice(place, place + 1)
                index, delta = torch.tensor([place]), deltas[place].clone()
                found[place] = Alarm(place, claim, eps, index, images[one], labels[one], delta, plain.arithmetic)
    return [alarm for _, alarm in sorted(found.items())]


def _chunks(images: Tensor, labels: Tensor, size: int = CHUNK) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(images.split(size), labels.split(size), strict=True)
