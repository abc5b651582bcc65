"""Projected sign-gradient ascent: the one loop behind every attack.

An attack supplies three hooks: where to start, what to maximise, and how to project back. It may hold one perturbation
per image or one per group; the loop only sees a batch of perturbations ("units") and keeps the best iterate of each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from citrus.errors import CitrusError
from citrus.inputs import check_limits
from citrus.networks.kernels import searching


@dataclass(frozen=True)
class Ascent:
    """Settings of the loop. Step sizes are fractions of the radius."""

    steps: int = 40
    restarts: int = 1
    step_size: float = 0.25
    decay: float = 0.2
    """The step size is multiplied by this each time a fraction of the steps named in `decay_at` has passed."""
    decay_at: tuple[float, ...] = (0.5, 0.8)
    momentum: tuple[float, ...] = ()
    """How much of its last direction a step keeps: restart r takes number r modulo how many there are. Empty leaves it
    to the attack: PGD keeps nothing, the universal attacks have their own."""
    keep: Literal["best", "last"] = "best"
    """Which iterate is the answer; the last one of a single start saves the network evaluation that would judge it."""

    def __post_init__(self) -> None:
        check_limits(self, {"steps": "[0, inf)", "restarts": "[1, inf)", "step_size": "(0, inf)", "decay": "(0, 1]"})
        if not all(0 <= kept < 1 for kept in self.momentum):
            raise CitrusError(f"Each momentum must lie in [0, 1), got {self.momentum}.")
        if self.keep == "last" and self.restarts > 1:
            raise CitrusError(f'An attack with {self.restarts} restarts has no last iterate: set keep to "best".')

    def step_at(self, step: int) -> float:
        return self.step_size * self.decay ** sum(step >= f * self.steps for f in self.decay_at)

    def kept_in(self, restart: int) -> float:
        """How much of its last direction a step of this restart keeps."""
        return self.momentum[restart % len(self.momentum)] if self.momentum else 0.0


Start = Callable[[], Tensor]
Objective = Callable[[Tensor, int], tuple[Tensor, Tensor]]
Project = Callable[[Tensor], Tensor]


def within(delta: Tensor, radius: Tensor | float) -> Tensor:
    """The nearest point of the box of `radius` around 0."""
    return delta.clamp(-radius, radius)  # type: ignore[arg-type]


def _turned(direction: Tensor, gradient: Tensor, kept: float) -> Tensor:
    """The next direction, in which gradients count alike however long they are."""
    length = gradient.abs().flatten(1).mean(1).clamp(min=torch.finfo(gradient.dtype).tiny)
    return kept * direction + gradient / length.view(-1, *[1] * (gradient.dim() - 1))


@searching()
def ascend(
    start: Start, objective: Objective, radius: Tensor | float, settings: Ascent, project: Project | None = None
) -> Tensor:
    """The best perturbation of each unit over all steps of all restarts (or the last one, if settings say so).

    `start()` gives the first perturbations (units, ...); `objective(delta, restart)` gives (loss, score), both
    (units,): the gradient of the loss is followed, and the iterate with the highest score, then loss, is kept.
    `project` may narrow what is left of a perturbation in the box of `radius`.
    """

    def back(delta: Tensor) -> Tensor:
        return project(within(delta, radius)) if project else within(delta, radius)

    best: Tensor | None = None
    best_loss = best_score = torch.empty(0)
    for restart in range(settings.restarts):
        delta, kept = back(start()), settings.kept_in(restart)
        direction = torch.zeros_like(delta) if kept else delta
        for step in range(settings.steps + 1):
            last = step == settings.steps
            if last and settings.keep == "last":
                return delta
            with torch.set_grad_enabled(not last):
                delta.requires_grad_(not last)
                loss, score = objective(delta, restart)
                gradient = delta if last else torch.autograd.grad(loss.sum(), delta)[0]
            delta, loss, score = delta.detach(), loss.detach(), score.detach()
            if best is None:
                best, best_loss, best_score = delta, loss, score
            else:
                better = (score > best_score) | ((score == best_score) & (loss > best_loss))
                best = torch.where(better.view(-1, *[1] * (delta.dim() - 1)), delta, best)
                best_loss = torch.where(better, loss, best_loss)
                best_score = torch.where(better, score, best_score)
            if not last:
                direction = _turned(direction, gradient, kept) if kept else gradient
                delta = back(delta + settings.step_at(step) * radius * direction.sign())
    assert best is not None
    return best
