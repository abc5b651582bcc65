"""Does what the paper found show in our numbers? Answered by them, not by us."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from citrus.bench.study import Measured

Answer = Literal["yes", "no", "unclear", "not measured"]
CLEAR_TREND = 0.5  # of Kendall's rank correlation


@dataclass(frozen=True)
class Finding:
    """A statement of the paper, whether it holds here, and the numbers that say so."""

    claim: str
    answer: Answer
    evidence: str


def clean_noise(measured: Measured) -> float:
    """One standard error of clean accuracy, in points."""
    return _standard_error(measured.row.clean, measured.clean_images)


def certified_noise(measured: Measured, images: int) -> float:
    """One standard error of certified accuracy on so many test images, in points."""
    return _standard_error(measured.row.certified_uap, images)


def _standard_error(percent: float, images: int) -> float:
    return 100 * math.sqrt(max(percent * (100 - percent), 0.0) / 1e4 / images)


def above(claim: str, high: float, low: float, noise: float, evidence: str) -> Finding:
    """Holds when `high` is above `low`; a difference within the noise decides nothing."""
    difference = high - low
    answer: Answer = "unclear" if abs(difference) <= noise else "yes" if difference > 0 else "no"
    return Finding(claim, answer, f"{evidence}; one standard error is {noise:.2f}")


def trend(claim: str, x: Sequence[float], y: Sequence[float], rising: bool, noise: float) -> Finding:
    """Holds when most pairs of points are ordered as claimed; points within the noise of each other decide nothing."""
    correlation = kendall(x, y)
    evidence = (
        f"rank correlation {correlation:+.2f} over {len(x)} values, from {y[0]:.2f} to {y[-1]:.2f}; one standard error "
        f"is {noise:.2f}"
    )
    if abs(correlation) < CLEAR_TREND or max(y) - min(y) <= noise:
        return Finding(claim, "unclear", evidence)
    return Finding(claim, "yes" if (correlation > 0) == rising else "no", evidence)


def kendall(x: Sequence[float], y: Sequence[float]) -> float:
    """Pairs in the same order less pairs in opposite order, as a share of all pairs; 0 for fewer than two points."""
    pairs = [(i, j) for j in range(len(x)) for i in range(j)]
    signs = [math.copysign(1, d) if (d := (x[i] - x[j]) * (y[i] - y[j])) else 0.0 for i, j in pairs]
    return sum(signs) / len(pairs) if pairs else 0.0
