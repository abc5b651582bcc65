"""What certified images say about inputs that nobody has seen: by hand, against exact sums, and by simulation."""

import functools
import math
from fractions import Fraction

import pytest
import torch

from citrus.certify.unseen import least_share, share_from_batches
from citrus.errors import CitrusError


def tail(least: int, tosses: int, p: Fraction) -> Fraction:
    """P(at least so many successes) in exact arithmetic."""
    return sum((math.comb(tosses, k) * p**k * (1 - p) ** (tosses - k) for k in range(least, tosses + 1)), Fraction(0))


@pytest.mark.parametrize(
    ("certified", "images"), [(1, 1), (1, 10), (9, 10), (10, 10), (37, 50), (200, 200), (119, 200)]
)
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99, 0.999999])
def test_it_is_the_largest_share_that_the_sample_speaks_for(certified: int, images: int, confidence: float) -> None:
    found, allowed = Fraction(least_share(certified, images, confidence)), 1 - Fraction(confidence)
    assert tail(certified, images, found) <= allowed
    assert tail(certified, images, min(Fraction(1), found + Fraction(1, 10**6))) > allowed


def test_by_hand() -> None:
    """All of n: p^n = 1 - confidence. None: nothing. One of one: p = 1 - confidence."""
    assert least_share(100, 100, 0.99) == pytest.approx(0.01 ** (1 / 100))
    assert least_share(0, 100) == 0.0
    assert least_share(1, 1, 0.99) == pytest.approx(0.01)
    assert 0.5600 < least_share(5740, 10_000, 0.99) < 0.5740 - 0.01
    assert least_share(5740, 10_000, 0.99) > 0.5740 - math.sqrt(math.log(100) / 20_000), "better than McDiarmid's"
    assert share_from_batches([1.0, 0.5, 0.0, 0.5] * 50) == pytest.approx(0.5 - math.sqrt(math.log(100) / 400))
    assert share_from_batches([0.1]) == 0.0


def test_it_fails_no_more_often_than_it_says() -> None:
    """A finite population of inputs that fall to some of 40 perturbations, whose true universal accuracy is known; of
    each sample the worst perturbation is found exactly. A thousand draws each, by replacement."""
    generator, bound = torch.Generator().manual_seed(0), functools.cache(least_share)
    for share, confidence in ((0.2, 0.9), (0.02, 0.99), (0.5, 0.75)):
        falls = torch.rand(5000, 40, generator=generator) < share
        truth = 1 - float(falls.double().mean(0).max())
        wrong = 0
        for _ in range(1000):
            sample = falls[torch.randint(0, 5000, (150,), generator=generator)]
            right = 150 - int(sample.sum(0).max())
            wrong += bound(right, 150, confidence) > truth
        allowed = 1000 * (1 - confidence)
        assert wrong <= allowed + 4 * math.sqrt(allowed)


def test_it_is_not_so_careful_that_it_says_nothing() -> None:
    """With one perturbation only the statement is as exact as a confidence interval can be."""
    generator, bound = torch.Generator().manual_seed(1), functools.cache(least_share)
    wrong = 0
    for _ in range(2000):
        right = int((torch.rand(300, generator=generator) < 0.8).sum())
        wrong += bound(right, 300, 0.9) > 0.8
    assert 100 < wrong < 270


def test_what_cannot_be_asked_is_refused() -> None:
    for confidence in (0.0, 1.0, -1.0, 99.0, math.nan):
        with pytest.raises(CitrusError, match="between 0 and 1"):
            least_share(5, 10, confidence)
    with pytest.raises(CitrusError, match="cannot be certified"):
        least_share(11, 10)
