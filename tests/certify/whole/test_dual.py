"""The bound for many choices: never below the truth, as good as a semidefinite solver's, its gradient, its vectors."""

import math

import pytest
import torch
from support.whole_cases import most_violated, random_planes, relaxed_optimum
from trial.noise import coarse

from citrus.certify.whole.dual import Multipliers, OpenPlanes
from citrus.certify.whole.lowrank import LowRank, Vectors
from citrus.certify.whole.rigorous import firmest, proved_bound


def solved(planes: OpenPlanes, looks: int = 4) -> tuple[Multipliers, float]:
    """The best of several looks."""
    relaxed, found = LowRank(planes), []
    for _ in range(looks):
        relaxed.advance(15)
        found.append(firmest(planes, relaxed.multipliers(), relaxed.marked))
    return min(found, key=lambda one: one[1])


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_is_never_below_the_truth(seed: int) -> None:
    planes = random_planes(seed)
    truth = most_violated(planes)
    multipliers, bound = solved(planes)
    assert bound >= truth - 1e-6
    assert bound <= planes.choices + 0.1
    assert proved_bound(planes, multipliers) == bound


@pytest.mark.parametrize("seed", range(30))
def test_the_bound_is_true_where_rounding_is_coarse(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planes = random_planes(5000 + seed)
    relaxed = LowRank(planes)
    relaxed.advance(30)
    multipliers, fine = relaxed.multipliers(), solved(planes)[1]
    with coarse(monkeypatch, seed):
        bound = firmest(planes, multipliers, relaxed.marked)[1]
    assert most_violated(planes) - 1e-6 <= bound < fine + 0.3


@pytest.mark.parametrize("seed", range(100))
def test_any_multipliers_are_sound(seed: int) -> None:
    planes = random_planes(1000 + seed, most=5)
    generator = torch.Generator().manual_seed(seed)

    def some(count: int, spread: float = 1.0) -> torch.Tensor:
        return (spread * torch.randn(count, dtype=torch.float64, generator=generator)).exp()

    alpha = 3 * some(planes.choices)
    gamma = torch.randn(len(planes.pairs), dtype=torch.float64, generator=generator)
    given = Multipliers(alpha, some(planes.a.shape[1], 2), 0.3 * some(len(planes.uses)), gamma, some(len(planes.cuts)))
    assert proved_bound(planes, given) >= most_violated(planes) - 1e-6


def test_multipliers_that_prove_nothing() -> None:
    planes = random_planes(3)
    good = solved(planes)[0]
    parts = vars(good)
    for name in ("beta", "weights", "theta"):
        if len(parts[name]):
            assert proved_bound(planes, Multipliers(**{**parts, name: -parts[name] - 1})) == math.inf
    for name, value in parts.items():
        assert not len(value) or proved_bound(planes, Multipliers(**{**parts, name: value * math.nan})) == math.inf
    assert proved_bound(planes, Multipliers(**{**parts, "alpha": 0 * good.alpha - 5})) == math.inf


@pytest.mark.parametrize("seed", range(10))
def test_as_good_as_a_semidefinite_solver(seed: int) -> None:
    """One plane for each choice, nothing excluded; 8 to 12 choices in 20 to 30 pixels."""
    generator = torch.Generator().manual_seed(seed)
    choices, pixels = 8 + seed % 5, 20 + seed
    a = torch.randn(choices, pixels, dtype=torch.float64, generator=generator)
    share = 0.1 + 0.3 * torch.rand(choices, dtype=torch.float64, generator=generator)
    order = torch.arange(choices)
    uses = torch.stack([order, order], 1)
    planes = OpenPlanes(choices, uses, a, share * a.abs().sum(1), torch.zeros(0, 2, dtype=torch.long))
    best = relaxed_optimum(planes)
    assert best - 1e-4 <= solved(planes)[1] <= 1.01 * best


@pytest.mark.parametrize("seed", range(2000, 2015))
def test_as_good_as_a_semidefinite_solver_with_labels_cuts_and_several_planes(seed: int) -> None:
    planes = random_planes(seed)
    best = relaxed_optimum(planes)
    assert best - 1e-4 <= solved(planes)[1] <= 1.01 * best + 0.02


@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_is_that_of_the_function(seed: int) -> None:
    relaxed = LowRank(random_planes(seed))
    relaxed.advance(1)
    x = torch.cat([relaxed.vectors.choices.flatten(), relaxed.vectors.pixels.flatten()])
    generator = torch.Generator().manual_seed(seed)
    x = x + 0.1 * torch.randn(x.shape, generator=generator)
    gradient = relaxed.value(x)[1]
    for _ in range(4):
        way = torch.randn(x.shape, generator=generator)
        ahead, behind = (relaxed.value(x + h * way)[0] for h in (2e-3, -2e-3))
        assert float(gradient @ way) == pytest.approx((ahead - behind) / 4e-3, rel=2e-2, abs=2e-2)


def test_vectors_of_choices_are_those_of_zeros_and_ones() -> None:
    vectors = Vectors.random(5, 3, torch.device("cpu"))
    torch.testing.assert_close((vectors.v**2).sum(1), vectors.v[:, 0])
    again = Vectors.of(vectors.v, vectors.pixels)
    torch.testing.assert_close(again.choices, vectors.choices)


def test_the_bound_by_hand() -> None:
    """Two images that need opposite pushes of 0.6 in one pixel: one of them falls. In the relaxation v_1 . u = -0.6 z
    and v_2 . u = 0.6 z with |u| = 1, which allows z = 1 / (1 + 0.6^2) each."""
    a = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    b = torch.tensor([0.6, 0.6], dtype=torch.float64)
    uses = torch.tensor([[0, 0], [1, 1]])
    planes = OpenPlanes(2, uses, a, b, torch.zeros(0, 2, dtype=torch.long))
    assert most_violated(planes) == 1
    bound = solved(planes)[1]
    assert relaxed_optimum(planes) == pytest.approx(2 / 1.36, abs=1e-4)
    assert 2 / 1.36 <= bound < 2 / 1.36 + 0.01
    none = OpenPlanes(0, uses[:0], a, b, torch.zeros(0, 2, dtype=torch.long))
    assert proved_bound(none, Multipliers(b[:0], b[:1], b[:0], b[:0], b[:0])) == 0


def test_a_choice_without_a_plane_is_lost() -> None:
    a, b = torch.ones(1, 1, dtype=torch.float64), torch.full((1,), 0.5, dtype=torch.float64)
    planes = OpenPlanes(3, torch.tensor([[0, 0]]), a, b, torch.zeros(0, 2, dtype=torch.long))
    assert 3 <= solved(planes)[1] < 3.01
    cut = OpenPlanes(3, torch.tensor([[0, 0]]), a, b, torch.zeros(0, 2, dtype=torch.long), (((0, 1, 2), 1),))
    assert 1 - 1e-6 <= solved(cut)[1] < 1.02
