"""The search over planes against a mixed integer program, exact rational proofs, and brute force."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from support.clocks import Ticks
from support.milp import solve_count, solve_set

from citrus.certify.search.duals import TIE, Answer, Oracle
from citrus.certify.search.memory import Contradiction
from citrus.certify.search.planes import ChoicePlanes, Conflict, dual_value
from citrus.certify.search.search import SearchResult, SubsetSearch
from citrus.checker.cover import covers
from citrus.errors import CitrusError

NEAR = 1e-6  # an optimum this close to zero, in units of |b| + eps |a|_1, is a tie


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: a second thread only waits when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_planes(seed: int, whole: bool = False) -> ChoicePlanes:
    """A small group; with `whole`, small integers, so that ties and planes that are zero are common."""
    rng = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=rng))

    images, labels, pixels = draw(3, 7), draw(2, 5), draw(3, 13)
    planes = 2 if seed % 3 == 0 else 1
    eps = 0.0 if seed % 10 == 9 else 0.25
    shape = (images, labels, planes)
    if whole:
        slopes = torch.randint(-2, 3, (*shape, pixels), generator=rng).double()
        offsets = torch.randint(-1, 4, shape, generator=rng).double() / 2
    else:
        slopes = torch.randn(*shape, pixels, generator=rng, dtype=torch.float64)
        offsets = slopes.abs().sum(-1) * 0.25 * (1.5 * torch.rand(shape, generator=rng, dtype=torch.float64) - 0.1)
    names = torch.stack([torch.randperm(10, generator=rng)[:labels] for _ in range(images)])
    return ChoicePlanes.of(slopes, offsets, names, eps)


def large_planes(images: int, seed: int, pixels: int = 3072, low: float = 0.4, high: float = 1.6) -> ChoicePlanes:
    """Dense planes with the structure of class directions, an image's own direction, and noise."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, 10, (images,), generator=rng)
    classes = torch.randn(10, pixels, generator=rng)
    labels = torch.stack([torch.tensor([j for j in range(10) if j != y]) for y in truth.tolist()])
    own, noise = torch.randn(images, 1, pixels, generator=rng), torch.randn(images, 9, pixels, generator=rng)
    slopes = 0.6 * (classes[truth][:, None] - classes[labels]) + 0.7 * own + 0.7 * noise
    share = 0.5 * torch.rand(images, 1, generator=rng) + 0.5 * torch.rand(images, 9, generator=rng)
    eps = 8 / 255
    return ChoicePlanes.of(slopes, (low + (high - low) * share) * eps * slopes.abs().sum(-1), labels, eps)


def labels_of(planes: ChoicePlanes) -> list[list[int]]:
    return [[j for i, j in planes.choices if i == image] for image in range(planes.images)]


def exact_value(planes: ChoicePlanes, conflict: Conflict) -> Fraction:
    """g(lambda) in rational arithmetic: every float is a whole number of 2^-300."""

    def whole(x: float) -> int:
        top, bottom = x.as_integer_ratio()
        assert bottom <= 2**300
        return top * (2**300 // bottom)

    used = list(conflict.planes)
    lambdas = [whole(weight) for weight in conflict.lambdas]
    columns = zip(*planes.slopes[used].tolist(), strict=True)
    mixed = [sum(weight * whole(a) for weight, a in zip(lambdas, column, strict=True)) for column in columns]
    value = sum(weight * whole(b) for weight, b in zip(lambdas, planes.offsets[used].tolist(), strict=True))
    return Fraction(value * 2**300 - whole(planes.eps) * sum(abs(x) for x in mixed), 2**900)


def check(planes: ChoicePlanes, result: SearchResult) -> None:
    """Everything a result claims, from the planes alone."""
    for conflict in result.conflicts:
        assert conflict.lambdas
        assert min(conflict.lambdas) >= 0
        owners = {planes.choices[c] for c in planes.owner[list(conflict.planes)].tolist()}
        assert owners <= set(conflict.choices)
        assert exact_value(planes, conflict) >= Fraction(conflict.value) > 0
    assert covers([c.choices for c in result.conflicts], labels_of(planes), result.survivors, result.parts)
    assert sorted(image for part in result.parts for image in part) == list(range(planes.images))
    assert len({image for image, _ in result.violable}) == len(result.violable) <= planes.images - result.survivors
    if result.violable and result.delta is None:
        assert_tie(planes, result.violable)
    elif result.delta is not None:
        assert result.delta.abs().max() <= planes.eps
        rows = [p for p, c in enumerate(planes.owner.tolist()) if planes.choices[c] in result.violable]
        values = planes.slopes[rows] @ result.delta + planes.offsets[rows]
        scale = planes.offsets[rows].abs() + planes.eps * planes.slopes[rows].abs().sum(1)
        assert bool((values <= 2 * TIE * scale).all())


def assert_tie(planes: ChoicePlanes, chosen: tuple[tuple[int, int], ...]) -> None:
    """What the duals may leave open, so that nobody knows a perturbation."""
    oracle = Oracle(planes)
    assert abs(solve_set(oracle, [planes.choices.index(choice) for choice in chosen])) <= NEAR


def search_subsets(planes: ChoicePlanes) -> SearchResult:
    return SubsetSearch(planes).run()


@pytest.mark.parametrize("whole", [False, True])
def test_equals_the_mixed_integer_program(whole: bool) -> None:
    for seed in range(50):
        planes = random_planes(seed, whole)
        result = search_subsets(planes)
        assert result.exact, seed
        assert result.survivors == planes.images - solve_count(planes), seed
        check(planes, result)


def test_no_sampled_delta_beats_the_count() -> None:
    rng = torch.Generator().manual_seed(0)
    for seed in range(30):
        planes = random_planes(seed, seed % 2 == 0)
        corners = torch.randint(0, 2, (3000, planes.slopes.shape[1]), generator=rng).double() * 2 - 1
        inner = 2 * torch.rand(1000, planes.slopes.shape[1], generator=rng, dtype=torch.float64) - 1
        positive = planes.eps * torch.cat([corners, inner]) @ planes.slopes.T + planes.offsets > 0
        safe = torch.stack([positive[:, planes.owner == c].any(1) for c in range(len(planes.choices))], 1)
        owner = torch.tensor([image for image, _ in planes.choices])
        count = torch.stack([safe[:, owner == image].all(1) for image in range(planes.images)]).sum(0)
        assert search_subsets(planes).survivors <= int(count.min())


def test_a_budget_leaves_a_sound_answer() -> None:
    gaps = set()
    for seed in range(3):
        planes = large_planes(6, seed, pixels=32, low=0.2, high=1.2)
        exact = search_subsets(planes)
        for seconds in (0, 12, 40):  # one passes at each look at the clock
            stopped = SubsetSearch(planes, now=Ticks(1.0)).run(seconds)
            assert stopped.survivors <= exact.survivors
            assert stopped.exact <= (stopped.survivors == exact.survivors)
            check(planes, stopped)
            gaps.add(exact.survivors - stopped.survivors)
    assert max(gaps) > 0, "the budgets never ended a search"


def test_a_stopped_search_goes_on_where_it_was() -> None:
    planes = large_planes(6, 1, pixels=32, low=0.2, high=1.2)
    search = SubsetSearch(planes, now=Ticks(1.0))
    results = [search.run(seconds=20), search.run()]
    assert results[1].exact
    assert not results[0].exact
    assert results[0].survivors < results[1].survivors == search_subsets(planes).survivors
    before = (search.nodes, search.known.sets)
    search.run()
    assert (search.nodes, search.known.sets) == before, "nothing is left to decide"


def test_cuts_are_honoured() -> None:
    for seed in range(20):
        planes = random_planes(seed)
        search = SubsetSearch(planes)
        before, cuts = search.run(), []
        for _ in range(3):
            largest = search.run().violable
            if len(largest) > 1:
                cuts.append(largest[:2])
                search.known.add_cut(largest[:2])
        after = search.run()
        assert after.exact
        assert after.survivors >= before.survivors
        assert after.survivors == planes.images - solve_count(planes, cuts)
        fresh = SubsetSearch(planes)
        for cut in cuts:
            fresh.known.add_cut(cut)
        assert after.survivors == fresh.run().survivors


def test_critical_sets_decide_the_count() -> None:
    for seed in (1, 2, 4, 5, 7, 8):
        planes = random_planes(seed)
        search = SubsetSearch(planes)
        first = search.run()
        sets = search.critical(count=10_000)
        size = planes.images - first.survivors
        assert len(set(sets)) == len(sets)
        assert all(len(chosen) == size for chosen in sets)
        if size == 0:
            assert sets == []
            continue
        wanted = brute_force_sets(planes, size)
        assert set(sets) == wanted, seed
        for chosen in sets:
            search.known.add_cut(chosen)
        assert search.run().survivors == first.survivors + 1
        assert len(SubsetSearch(planes).critical()) == 0, "there is nothing to say before a run"


def brute_force_sets(planes: ChoicePlanes, size: int) -> set[tuple[tuple[int, int], ...]]:
    every = itertools.combinations(range(len(planes.choices)), size)
    sets = [chosen for chosen in every if len({planes.choices[c][0] for c in chosen}) == size]
    answers = Oracle(planes).settle(sets)
    pairs = zip(sets, answers, strict=True)
    return {tuple(sorted(planes.choices[c] for c in chosen)) for chosen, a in pairs if a.conflict is None}


def test_witnesses_start_the_search_and_end_refinement() -> None:
    planes = random_planes(4)
    search = SubsetSearch(planes)
    result = search.run()
    assert result.delta is not None
    other = SubsetSearch(planes)
    other.known.add_witness(result.delta, result.violable)
    assert other.run().survivors == result.survivors
    assert other.critical() == [], "an attack reaches the bound, so no proof can raise it"
    with pytest.raises(Contradiction):
        other.known.add_cut(result.violable)
    search.known.add_cut(result.violable)
    with pytest.raises(Contradiction):
        search.known.add_witness(result.delta, result.violable)


def test_covers_needs_every_necessary_conflict() -> None:
    labels = [[1, 2], [3], [4]]
    pair = [[(0, 1), (1, 3)], [(0, 2), (1, 3)]]
    assert covers(pair, labels, 1)
    assert not covers(pair, labels, 2)
    assert not covers(pair[:1], labels, 1)
    assert not covers(pair[1:], labels, 1)
    assert covers([[(0, 1)], [(0, 2)]], labels, 1), "single choices prove an image"
    assert covers([[(0, 1), (1, 3), (2, 4)], [(0, 2), (2, 4)]], labels, 1)
    assert not covers([[(0, 1), (1, 3), (2, 4)]], labels, 1)
    assert covers([], [[], [1]], 1), "an image without labels survives"
    assert covers([], [], 0)
    assert not covers([[]], [[1]], 1), "an empty conflict proves nothing"
    assert not covers(pair, labels, 1, [[0, 1], [1, 2]]), "parts must not overlap"
    assert covers(pair, labels, 1, [[0, 1], [2]])
    assert not covers(pair, labels, 1, [[2], [0]])


def test_covers_rejects_a_raised_count_and_a_missing_conflict() -> None:
    removed = 0
    for seed in range(12):
        planes = random_planes(seed)
        result = search_subsets(planes)
        sets, labels = [c.choices for c in result.conflicts], labels_of(planes)
        assert covers(sets, labels, result.survivors)
        assert not covers(sets, labels, result.survivors + 1)
        for k in range(len(sets)):
            rest = sets[:k] + sets[k + 1 :]
            implied = planes.images - largest_free(rest, labels)
            assert covers(rest, labels, result.survivors) == (implied >= result.survivors)
            removed += implied < result.survivors
    assert removed > 10


def largest_free(conflicts: list[tuple[tuple[int, int], ...]], labels: list[list[int]]) -> int:
    """Every assignment of a label or none to every image."""
    best = 0
    options = [[None, *((i, j) for j in mine)] for i, mine in enumerate(labels)]
    for picked in itertools.product(*options):
        chosen = {choice for choice in picked if choice is not None}
        if len(chosen) > best and not any(set(conflict) <= chosen for conflict in conflicts):
            best = len(chosen)
    return best


def test_one_image_and_no_open_labels() -> None:
    slopes, labels = torch.ones(1, 1, 4), torch.tensor([[7]])
    assert search_subsets(ChoicePlanes.of(slopes, torch.tensor([[4.1]]), labels, 1.0)).survivors == 1
    tie = search_subsets(ChoicePlanes.of(slopes, torch.tensor([[4.0]]), labels, 1.0))
    assert (tie.survivors, tie.exact, tie.violable) == (0, True, ((0, 7),))
    closed = ChoicePlanes.of(torch.ones(3, 2, 4), torch.zeros(3, 2), torch.ones(3, 2), 1.0, torch.zeros(3, 2))
    nothing = search_subsets(closed)
    assert (nothing.survivors, nothing.exact, nothing.violable, nothing.conflicts) == (3, True, (), ())
    assert solve_count(closed) == 0


def test_numbers_that_are_not_finite_prove_nothing() -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        slopes, labels = torch.zeros(2, 2, 5), torch.tensor([[1, 2], [0, 2]])
        offsets = torch.ones(2, 2)
        assert search_subsets(ChoicePlanes.of(slopes, offsets, labels, 0.1)).survivors == 2
        slopes[0, 1, 3] = bad
        assert search_subsets(ChoicePlanes.of(slopes, offsets, labels, 0.1)).survivors == 1
        offsets[1, 0] = bad
        result = search_subsets(ChoicePlanes.of(slopes, offsets, labels, 0.1))
        assert (result.survivors, result.exact) == (0, True)


def test_negative_multipliers_are_refused() -> None:
    planes = random_planes(1)
    with pytest.raises(CitrusError, match=">= 0"):
        dual_value(planes.slopes, planes.offsets, 0.1, -torch.ones(len(planes.slopes)))


def test_the_rounding_bound_holds_in_rational_arithmetic() -> None:
    rng = torch.Generator().manual_seed(3)
    for scale in (1e-12, 1.0, 1e12):
        slopes = torch.randn(5, 300, generator=rng, dtype=torch.float64) * scale
        lambdas = torch.rand(5, generator=rng, dtype=torch.float64)
        offsets = 0.1 * slopes.abs().sum(1) * torch.rand(5, generator=rng, dtype=torch.float64)
        value, rounding = dual_value(slopes, offsets, 0.1, lambdas)
        planes = ChoicePlanes(1, 0.1, ((0, 1),), torch.zeros(5, dtype=torch.long), slopes, offsets)
        conflict = Conflict(((0, 1),), tuple(range(5)), tuple(lambdas.tolist()))
        error = abs(exact_value(planes, conflict) - Fraction(float(value)))
        assert error <= Fraction(float(rounding))
        assert float(rounding) < 1e-11 * 30 * scale * 300


@pytest.mark.parametrize("whole", [False, True], ids=["random", "ties"])
def test_the_linear_program_agrees_with_the_ascent(whole: bool) -> None:
    """A set is proved, violated by a delta, or a tie that may stay open: which of these two is up to the last bits."""
    ties = 0
    for seed in range(20):
        oracle = Oracle(random_planes(seed, whole))
        sets = [tuple(range(k, k + 3)) for k in range(len(oracle.planes.choices) - 3)]
        sets = [chosen for chosen in sets if any(oracle.members[c] for c in chosen)]
        for chosen, answer in zip(sets, oracle.settle(sets), strict=True):
            optimum = solve_set(oracle, chosen)
            assert answer.conflict is None or (answer.delta is None and optimum > -NEAR)
            assert answer.conflict is not None or optimum < NEAR
            assert answer.delta is not None or optimum > -NEAR
            ties += abs(optimum) <= NEAR
    assert bool(ties) == whole


class Undecided(Oracle):
    """An oracle that never knows a perturbation: it leaves open what it cannot prove."""

    def settle(self, *arguments: Any) -> list[Answer]:
        return [replace(answer, delta=None) for answer in super().settle(*arguments)]


def test_what_is_left_open_counts_as_violable() -> None:
    for seed in range(8):
        planes = random_planes(seed, seed % 2 == 0)
        known = SubsetSearch(planes)
        search = SubsetSearch(planes)
        search.known.oracle = Undecided(planes)
        expected, result = known.run(), search.run()
        assert result.exact
        assert (result.survivors, len(result.violable)) == (expected.survivors, len(expected.violable))
        assert result.delta is None
        assert covers([c.choices for c in result.conflicts], labels_of(planes), result.survivors, result.parts)
        assert set(search.critical(count=10_000)) == set(known.critical(count=10_000))


def test_a_search_over_ten_images_is_small() -> None:
    """Three groups take 0.4 s of one core; what is counted here does not depend on the machine."""
    searches = [SubsetSearch(large_planes(10, seed)) for seed in range(3)]
    assert all(search.run().exact for search in searches)
    assert sum(search.nodes for search in searches) < 1_000
    assert sum(search.known.sets for search in searches) < 10_000
