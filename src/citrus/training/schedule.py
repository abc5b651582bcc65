"""Schedules: how eps grows and the learning rate falls, which kind of step that makes, and its random numbers.

They depend on where in a run they are used, not on what ran before: so resuming is exact.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from citrus.training.config import TrainConfig


@dataclass(frozen=True)
class Phase:
    """What kind of step it is: all that no number on the device can change. Each kind is recorded once on a GPU."""

    robust: bool
    """eps > 0: the method is asked."""
    regularized: bool
    ramping: bool
    stage: int


class Moment(NamedTuple):
    """Everything that a schedule says about one step: the numbers that the device reads, and its kind."""

    step: int
    eps: float
    ramp: float
    """eps as a share of its final value."""
    regularizer: float
    lr: float
    phase: Phase


def moment(config: TrainConfig, step: int, steps_per_epoch: int) -> Moment:
    """Where a run stands at a step, counted from 0."""
    eps = eps_at(config, step, steps_per_epoch)
    ramp = eps / config.train_eps if config.train_eps else 1.0
    weight = config.regularizer * (1 - ramp) if config.method.certified and config.train_eps else 0.0
    stage = config.method.stage(step / (config.epochs * steps_per_epoch))
    phase = Phase(eps > 0, weight > 0, ramp < 1, stage)
    return Moment(step, eps, ramp, weight, lr_at(config, step, steps_per_epoch), phase)


def smooth_ramp(step: int, first: int, last: int, top: float) -> float:
    """0 up to `first`, `top` from `last` on; between them x^4 for the first quarter, then a line of the same slope.

    With mid = first + floor((last - first) / 4), a (s - first)^4 reaches a height and slope at mid from which the line
    meets `top` at `last`:  a = top / ((last - mid) * 4 (mid - first)^3 + (mid - first)^4).
    """
    if step >= last:
        return top
    if step <= first:
        return 0.0
    quarter = (last - first) // 4
    if not quarter:
        return top * (step - first) / (last - first)
    mid = first + quarter
    a = top / ((last - mid) * 4 * quarter**3 + quarter**4)
    if step <= mid:
        return a * (step - first) ** 4
    start = a * quarter**4
    return start + (top - start) * (step - mid) / (last - mid)


def eps_at(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Training radius of a step, counted from 0. The first step of the ramp already has eps > 0."""
    first = config.warmup_epochs * steps_per_epoch
    last = first + config.ramp_epochs * steps_per_epoch
    return smooth_ramp(step + 1, first, last, config.train_eps) if step >= first else 0.0


def lr_at(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Learning rate of a step, counted from 0."""
    if config.lr_schedule == "steps":
        return config.lr * config.lr_factor ** sum(step // steps_per_epoch >= m for m in config.milestones)
    full = (config.warmup_epochs + config.ramp_epochs) * steps_per_epoch
    if step < full:
        return config.lr
    share = (step - full) / (config.epochs * steps_per_epoch - full)
    return config.lr * (0.5 * (1 + math.cos(math.pi * share)))


def seed_of(seed: int, purpose: str, number: int = 0) -> int:
    """The seed for one purpose at one epoch or step of a run."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def stream(seed: int, purpose: str, number: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for one purpose at one epoch or step of a run."""
    return torch.Generator(device).manual_seed(seed_of(seed, purpose, number))
