"""Schedules: how eps grows and the learning rate falls."""

from citrus.training.config import TrainConfig


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


def lr_at(config: TrainConfig, epoch: int) -> float:
    """Learning rate of an epoch, counted from 0."""
    return config.lr * config.lr_factor ** sum(epoch >= m for m in config.milestones)
