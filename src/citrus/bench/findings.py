"""Does what the paper found show in our numbers? Answered by them, not by us."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from citrus.bench.scales import GROUP
from citrus.bench.study import Measured

Noise = Callable[[Measured, Measured], float]
Answer = Literal["yes", "no", "unclear", "not measured"]
CLEAR_TREND = 0.5  # of Kendall's rank correlation


@dataclass(frozen=True)
class Finding:
    """A statement of the paper, whether it holds here, and the numbers that say so."""

    claim: str
    answer: Answer
    evidence: str


def clean_noise(a: Measured, b: Measured) -> float:
    """Two standard errors of the difference of two clean accuracies, in points."""
    shares = [(m.row.clean / 100, m.clean_images) for m in (a, b)]
    return 200 * math.sqrt(sum(p * (1 - p) / n for p, n in shares))


def certified_noise(a: Measured, b: Measured) -> float:
    """Two standard errors of the difference of two certified accuracies, in points, from how groups differ.

    Both networks meet the same groups, so that what makes a group hard for both does not count.
    """
    difference = [x - y for x, y in zip(a.groups, b.groups, strict=True)]
    count = len(difference)
    if count < 2:
        return math.inf
    mean = sum(difference) / count
    deviation = math.sqrt(sum((d - mean) ** 2 for d in difference) / (count - 1))
    return 200 * deviation / math.sqrt(count) / GROUP


def above(claim: str, high: float, low: float, noise: float, evidence: str) -> Finding:
    """Holds when `high` is above `low`; a difference within the noise decides nothing."""
    difference = high - low
    answer: Answer = "unclear" if abs(difference) <= noise else "yes" if difference > 0 else "no"
    return Finding(claim, answer, f"{evidence}; two standard errors are {noise:.2f}")


def trend(
    claim: str, runs: Sequence[Measured], x: Sequence[float], y: Sequence[float], rising: bool, noise: Noise
) -> Finding:
    """Holds when most pairs of values are ordered as claimed; values within the noise of each other decide nothing."""
    correlation = kendall(x, y)
    least = noise(runs[y.index(min(y))], runs[y.index(max(y))])
    evidence = (
        f"rank correlation {correlation:+.2f} over {len(x)} values, from {y[0]:.2f} to {y[-1]:.2f}; two standard "
        f"errors are {least:.2f}"
    )
    if abs(correlation) < CLEAR_TREND or max(y) - min(y) <= least:
        return Finding(claim, "unclear", evidence)
    return Finding(claim, "yes" if (correlation > 0) == rising else "no", evidence)


def kendall(x: Sequence[float], y: Sequence[float]) -> float:
    """Pairs in the same order less pairs in opposite order, as a share of all pairs; 0 for fewer than two points."""
    pairs = [(i, j) for j in range(len(x)) for i in range(j)]
    signs = [math.copysign(1, d) if (d := (x[i] - x[j]) * (y[i] - y[j])) else 0.0 for i, j in pairs]
    return sum(signs) / len(pairs) if pairs else 0.0
