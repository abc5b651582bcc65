"""The universal attack on a whole data set: one perturbation for as many images as there are.

    delta = attack_all(model, images, labels, eps, Ascent(steps=60, restarts=12), generator)

A step looks at a few hundred images, so that its cost does not grow with the set; where a restart ends is judged on all
of them. The best is then polished: the images that stand nearest to the boundary under it, all of them in every step,
decide which ones more it can have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from citrus.attacks.ascent import Ascent, ascend, within
from citrus.attacks.pgd import Loss, Model, fooled, uniform
from citrus.attacks.universal import nearest, universal_pgd
from citrus.bounds.margins import margins

CHUNK = 500
"""The most images that go through the model at a time; a set no larger is attacked as a group is."""
BATCH = 250
"""Images of a step: 250 and 500 found about the same in the same time, 2,000 less."""
LOSSES = (nearest(0.001), nearest(0.003), nearest(0.0003))
"""Restart r uses loss r modulo their number: sharper ones than for a group, as most images are out of reach."""
MOMENTUM = (0.75,)
ROUNDS = 4
"""A restart takes so many times the steps of the settings, as each sees a part of the images only."""
POLISHED = 2000
"""Images nearest to the boundary that a polishing restart looks at in every step."""
POLISHING = 4
"""One polishing restart for so many restarts."""
POLISH_STEP = 0.4
"""Its first step, as a share of that of the settings."""


@dataclass(frozen=True)
class _Images:
    """A set of images of any size, which goes through the model in chunks."""

    model: Model
    images: Tensor
    labels: Tensor

    def only(self, which: Tensor) -> "_Images":
        return replace(self, images=self.images[which], labels=self.labels[which])

    @torch.no_grad()
    def margins(self, delta: Tensor) -> Tensor:
        """The smallest margin of each image under a perturbation (C, H, W)."""
        chunks = zip(self.images.split(CHUNK), self.labels.split(CHUNK), strict=True)
        return torch.cat([margins(self.model(x + delta), y).amin(1) for x, y in chunks])

    def pull(self, delta: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """The sum of losses and how many images are fooled, each (1,). The gradient of the sum is taken chunk by chunk
        and put back as that of a linear function, so that memory holds one chunk however many there are."""
        total, wrong, slope = delta.new_zeros(1), delta.new_zeros(1), torch.zeros_like(delta)
        for x, y in zip(self.images.split(CHUNK), self.labels.split(CHUNK), strict=True):
            logits = self.model(x + delta)
            part = loss(logits, y).sum()
            if delta.requires_grad:
                slope += torch.autograd.grad(part, delta)[0]
            total += part.detach()
            wrong += fooled(logits.detach(), y).sum()
        return total + ((delta - delta.detach()) * slope).sum(), wrong


class _Best:
    """The perturbation that fools most images of a set so far; of equal ones the first."""

    def __init__(self, among: _Images) -> None:
        self.among, self.count = among, -1
        self.delta = torch.zeros_like(among.images[0])
        self.margins = torch.empty(0)

    def judge(self, delta: Tensor) -> int:
        """How many images a perturbation fools; it is kept if no other fools as many."""
        margins = self.among.margins(delta)
        count = int((~(margins > 0)).sum())
        if count > self.count:
            self.delta, self.count, self.margins = delta, count, margins
        return count


def attack_all(
    model: Model,
    images: Tensor,
    labels: Tensor,
    eps: float,
    settings: Ascent,
    generator: torch.Generator | None = None,
    starts: Sequence[Tensor] = (),
) -> Tensor:
    """One perturbation (C, H, W), |delta| <= eps, that fools as many of all images as possible.

    `starts` are perturbations known from elsewhere, from training images say: the answer is no worse than any of them,
    and the first restarts begin at them, the best first. Perturbed images are not clipped to [0, 1].
    """
    best = _Best(_Images(model, images, labels))
    known = sorted((within(start.detach(), eps) for start in starts), key=best.judge, reverse=True)
    fresh = settings.restarts
    if len(images) <= CHUNK:  # a group like any other
        groups, fresh = torch.zeros_like(labels), 0
        best.judge(universal_pgd(model, images, labels, groups, eps, settings, generator).delta[0])
    for restart in range(fresh or min(len(known), settings.restarts)):
        start = known[restart] if restart < len(known) else None
        if best.count < len(images):
            best.judge(_restart(best.among, restart, start, eps, settings, generator))
    for number in range(-(-settings.restarts // POLISHING)):
        if best.count < len(images):
            best.judge(_polished(best, number, eps, settings))
    return best.delta


def _restart(
    among: _Images, restart: int, start: Tensor | None, eps: float, settings: Ascent, generator: torch.Generator | None
) -> Tensor:
    """Where one restart ends. Between its points cannot be chosen, for each was judged on other images."""
    batches = _batches(among, generator)

    def begin() -> Tensor:
        return uniform((1, *among.images.shape[1:]), eps, among.images, generator) if start is None else start[None]

    def objective(delta: Tensor, _: int) -> tuple[Tensor, Tensor]:
        return batches().pull(delta, LOSSES[restart % len(LOSSES)])

    steps, momentum = ROUNDS * settings.steps, settings.momentum or MOMENTUM
    keep: Literal["best", "last"] = "best" if len(among.images) <= BATCH else "last"
    return ascend(begin, objective, eps, replace(settings, steps=steps, restarts=1, momentum=momentum, keep=keep))[0]


def _batches(among: _Images, generator: torch.Generator | None) -> Callable[[], _Images]:
    """Gives another part of the images at each call, in an order that is drawn anew when all have been seen."""
    count, device = len(among.images), among.images.device
    left: list[Tensor] = []

    def batch() -> _Images:
        if count <= BATCH:
            return among
        if not left:
            order = torch.randperm(count, generator=generator, device=device)
            left.extend(order[: count - count % BATCH].split(BATCH))
        return among.only(left.pop())

    return batch


def _polished(best: _Best, number: int, eps: float, settings: Ascent) -> Tensor:
    """The best perturbation after small steps on all images that stand near the boundary under it."""
    near = best.among.only(best.margins.abs().nan_to_num(torch.inf).argsort(stable=True)[:POLISHED])

    def objective(delta: Tensor, _: int) -> tuple[Tensor, Tensor]:
        return near.pull(delta, LOSSES[number % len(LOSSES)])

    momentum, size = settings.momentum or MOMENTUM, POLISH_STEP * settings.step_size
    finely = replace(settings, restarts=1, step_size=size, momentum=momentum, keep="best")
    return ascend(lambda: best.delta[None], objective, eps, finely)[0]
