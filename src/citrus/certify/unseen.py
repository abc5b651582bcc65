"""What a certified test set says about inputs that nobody has seen.

Let p be the share of all inputs that stay right under the perturbation that is worst for all of them. Of n test images,
drawn from the same distribution and independent of the network, as many stay right under it as n tosses of a coin with
p; and at least s do, where s are certified, because a certificate speaks of every perturbation. So whatever the
binomial distribution says about p from s successes in n is true of it: with the wanted confidence p is at least the p
for which s or more successes have the probability 1 - confidence (Clopper and Pearson, 1934). Groups may be of any
size: what survives in groups survives one perturbation for all.

Zeng et al. (2023) bound p from batches: the certified share of a batch is on average at most p, so that the mean over m
batches is above p by no more than sqrt(log(1 / (1 - confidence)) / 2 m) with the wanted confidence (Hoeffding, 1963).
"""

import math
from collections.abc import Sequence

import torch

from citrus.errors import CitrusError

STEPS = 60  # of halving


def least_share(certified: int, images: int, confidence: float = 0.99) -> float:
    """A lower bound of the share of all inputs that stay right under any one perturbation."""
    check_confidence(confidence)
    if not 0 <= certified <= images or images < 1:
        raise CitrusError(f"Of {images} images {certified} cannot be certified.")
    if not certified:
        return 0.0
    allowed = math.log1p(-confidence) - 1e-13 * (images + 1e4)  # what rounding may hide of the logarithm of a tail
    low, high = 0.0, certified / images
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _log_tail(certified, images, middle) <= allowed else (low, middle)
    return low


def share_from_batches(shares: Sequence[float], confidence: float = 0.99) -> float:
    """The same from the certified shares of batches of equal size, by Zeng et al. (2023)."""
    check_confidence(confidence)
    if not shares:
        return 0.0
    return max(0.0, sum(shares) / len(shares) - math.sqrt(-math.log1p(-confidence) / (2 * len(shares))))


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise CitrusError(f"A confidence lies between 0 and 1, such as 0.99, got {confidence}.")


def _log_tail(least: int, tosses: int, p: float) -> float:
    """log P(at least so many successes)."""
    if not p:
        return -math.inf
    k = torch.arange(least, tosses + 1, dtype=torch.float64)
    n = torch.tensor(float(tosses), dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return float((ways + k * math.log(p) + (tosses - k) * math.log1p(-p)).logsumexp(0))
