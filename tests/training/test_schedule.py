"""The eps ramp is the smooth one of the literature, step by step, and the learning rate falls at its milestones."""

from dataclasses import replace
from itertools import pairwise

import pytest

from citrus.methods import IBP
from citrus.training import TrainConfig
from citrus.training.schedule import eps_at, lr_at, smooth_ramp

CONFIG = TrainConfig(data="digits", network="mlp", method=IBP(), eps=0.2, epochs=10, batch_size=10)
RAMPS = [(0, 8), (3, 11), (0, 100), (7, 1000), (20, 61), (0, 4), (5, 12)]


def test_a_small_ramp_by_hand() -> None:
    """first 0, last 8: mid 2, a = 1 / (6 * 4 * 2^3 + 2^4) = 1/208; then a line of slope 4 * 2^3 / 208."""
    expected = [0, 1, 16, 48, 80, 112, 144, 176, 208]
    assert [208 * smooth_ramp(s, 0, 8, 1.0) for s in range(9)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("first", "last"), RAMPS)
def test_it_starts_at_0_and_ends_at_the_top(first: int, last: int) -> None:
    assert smooth_ramp(first, first, last, 0.3) == 0
    assert smooth_ramp(last, first, last, 0.3) == 0.3
    assert all(smooth_ramp(s, first, last, 0.3) == 0 for s in range(first))
    assert all(smooth_ramp(last + s, first, last, 0.3) == 0.3 for s in range(5))


@pytest.mark.parametrize(("first", "last"), RAMPS)
def test_it_grows_at_every_step_and_never_overshoots(first: int, last: int) -> None:
    values = [smooth_ramp(s, first, last, 0.3) for s in range(first, last + 1)]
    assert all(a < b for a, b in pairwise(values))
    assert values[-1] == 0.3


@pytest.mark.parametrize(("first", "last"), RAMPS)
def test_value_and_slope_are_continuous_where_the_line_begins(first: int, last: int) -> None:
    quarter = int(0.25 * (last - first))
    mid = first + quarter
    a = 0.3 / ((last - mid) * 4 * quarter**3 + quarter**4)
    assert smooth_ramp(mid, first, last, 0.3) == pytest.approx(a * quarter**4, rel=1e-12)
    slope = 4 * a * quarter**3  # of a (s - first)^4 at mid
    line = [smooth_ramp(s, first, last, 0.3) for s in range(mid, last + 1)]
    assert [b - a for a, b in pairwise(line)] == pytest.approx([slope] * (last - mid), rel=1e-9)
    powers = [a * (s - first) ** 4 for s in range(first, mid + 1)]
    assert [smooth_ramp(s, first, last, 0.3) for s in range(first, mid + 1)] == pytest.approx(powers, rel=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_ramp_too_short_for_a_quarter_is_a_line(length: int) -> None:
    values = [smooth_ramp(s, 5, 5 + length, 0.3) for s in range(5, 6 + length)]
    assert values == pytest.approx([0.3 * s / length for s in range(length + 1)])


def test_eps_follows_warm_up_and_ramp_step_by_step() -> None:
    config = replace(CONFIG, warmup_epochs=1, ramp_epochs=2)
    eps = [eps_at(config, step, 4) for step in range(40)]
    assert eps[:4] == [0, 0, 0, 0]
    ramp = [0.2 * part / 208 for part in (1, 16, 48, 80, 112, 144, 176, 208)]
    assert eps[4:12] == pytest.approx(ramp, rel=1e-12)
    assert eps[11:] == [0.2] * 29


def test_without_a_ramp_eps_is_full_at_once() -> None:
    assert [eps_at(CONFIG, step, 4) for step in (0, 1, 39)] == [0.2] * 3
    warm = replace(CONFIG, warmup_epochs=2)
    assert [eps_at(warm, step, 4) for step in (0, 7, 8, 39)] == [0, 0, 0.2, 0.2]


def test_eps_factor_scales_the_training_radius() -> None:
    config = replace(CONFIG, eps=0.3, eps_factor=4 / 3, ramp_epochs=2)
    assert eps_at(config, 39, 4) == pytest.approx(0.4)
    assert eps_at(config, 0, 4) == pytest.approx(0.4 / 208)


def test_the_learning_rate_falls_at_the_start_of_each_milestone() -> None:
    config = replace(CONFIG, lr=1e-3, milestones=(2, 5), lr_factor=0.1)
    rates = [lr_at(config, 4 * epoch, 4) for epoch in range(7)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-4, 1e-5, 1e-5], rel=1e-12)
    assert lr_at(CONFIG, 39, 4) == CONFIG.lr
