"""Joint refinement against sampled and attacked perturbations, brute force, and the program it is the dual of."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.helpers import CLASSES, Case, case_named
from support.joint_cases import DEEP, EPS, attack, member_margins, mixed_subsets, sampled, small, triangle_program

from citrus.bounds.ascent import hopeless_after
from citrus.bounds.interval import Box
from citrus.bounds.margins import wrong_labels
from citrus.certify.clock import Clock, SharedTime
from citrus.certify.refine.sets import JointResult, JointSettings, Subset, prove_sets
from citrus.certify.search.planes import dual_value

STEPS = JointSettings(iterations=25, window=0)


CASES = [DEEP, *(case_named(name) for name in ("linear", "residual stack", "residual pre-activation", "shared relu"))]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: a second thread only waits when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rises_from_the_start_and_is_the_dual_value_of_what_is_returned(case: Case) -> None:
    instance = small(case)
    subsets = mixed_subsets(instance)
    first = prove_sets(instance, subsets, replace(STEPS, iterations=0))
    found = prove_sets(instance, subsets, STEPS)
    assert [result.choices for result in found] == subsets
    for start, result in zip(first, found, strict=True):
        assert start.steps == 0
        assert result.value >= start.value - 1e-6
        value, rounding = dual_value(result.a, result.b, EPS, result.lambdas)
        assert result.value == pytest.approx(float(value - rounding), abs=1e-12)
        assert result.proved == bool(result.core)
        assert set(result.core) <= set(result.choices)
        assert float(result.lambdas.sum()) == pytest.approx(1)
        if result.proved:
            needed, rounding = dual_value(result.a, result.b, EPS, result.proof)
            assert float(needed - rounding) > 0
    assert case.relus == 0 or sum(r.value for r in found) > sum(r.value for r in first) + 0.01


@pytest.mark.parametrize("case", CASES, ids=str)
def test_planes_are_sound_and_proofs_hold(case: Case) -> None:
    """At 10,000 perturbations each, and at those that an attack on the subset itself finds."""
    instance = small(case)
    found = prove_sets(instance, mixed_subsets(instance), STEPS)
    deltas = sampled(instance, 10_000)
    for result in found:
        margins = member_margins(instance, result.choices, deltas)
        assert (margins >= deltas.flatten(1) @ result.a.float().T + result.b.float() - 1e-4).all()
    for result in [result for result in found if result.proved]:
        assert (member_margins(instance, result.core, deltas).amax(1) > 0).all()
        assert (member_margins(instance, result.core, attack(instance, result.core)).amax(1) > 0).all()


def test_reaches_the_linear_program_of_the_joint_triangle_relaxation() -> None:
    instance = small(case_named("mlp"), eps=0.15)
    subsets = [s for s in mixed_subsets(instance) if len(s) > 1]
    found = prove_sets(instance, subsets, JointSettings(iterations=400, decay=0.99, window=0))
    for result in found:
        optimum = triangle_program(instance, result.choices)
        assert result.value <= optimum + 1e-5
        assert result.proved or result.value >= optimum - 0.01


def assert_same(one: JointResult, two: JointResult) -> None:
    assert (one.choices, one.proved, one.core, one.steps) == (two.choices, two.proved, two.core, two.steps)
    assert one.value == pytest.approx(two.value, abs=1e-4)


@pytest.mark.parametrize("case", [DEEP, case_named("residual stack")], ids=str)
def test_one_by_one_and_in_chunks_as_in_one_batch(case: Case) -> None:
    instance = small(case)
    subsets = mixed_subsets(instance)
    settings = JointSettings(iterations=15)
    batch = prove_sets(instance, subsets, settings)
    assert len({result.steps for result in batch}) > 1
    for result, subset in zip(batch, subsets, strict=True):
        assert_same(result, prove_sets(instance, [subset], settings)[0])
    for memory in (1, 200_000):
        for one, two in zip(batch, prove_sets(instance, subsets, replace(settings, memory=memory)), strict=True):
            assert_same(one, two)


def test_starts_are_used_and_a_better_start_is_never_lost() -> None:
    instance = small()
    subsets = [s for s in mixed_subsets(instance) if len(s) == 2]
    found = prove_sets(instance, subsets, STEPS)
    for result in found:
        starts = {choice: tuple(s[m] for s in result.slopes) for m, choice in enumerate(result.choices)}
        again = prove_sets(instance, [result.choices], replace(STEPS, iterations=0), starts)[0]
        for mine, given in zip(again.slopes, result.slopes, strict=True):
            assert torch.equal(mine, given)
        torch.testing.assert_close(again.a, result.a)


def test_a_member_that_is_safe_alone_is_the_whole_proof() -> None:
    instance = small(eps=0.003)
    wrong = wrong_labels(instance.labels, CLASSES)
    result = prove_sets(instance, [tuple((i, int(wrong[i, 0])) for i in range(5))])[0]
    assert result.proved
    assert len(result.core) == 1
    assert result.steps == 0


def test_nan_is_not_a_proof_and_stays_with_its_image() -> None:
    instance = small(eps=0.003)
    centres = [box.centre.clone() for box in instance.boxes]
    centres[1][2] = torch.nan
    broken = replace(instance, boxes=tuple(Box(c, b.radius) for c, b in zip(centres, instance.boxes, strict=True)))
    wrong = wrong_labels(instance.labels, CLASSES).tolist()
    subsets: list[Subset] = [((0, wrong[0][0]), (2, wrong[2][0])), ((0, wrong[0][0]), (1, wrong[1][0]))]
    for settings in (JointSettings(iterations=5), JointSettings(iterations=5, window=0)):
        spoilt, healthy = prove_sets(broken, subsets, settings)
        assert not spoilt.proved
        assert spoilt.core == ()
        assert healthy.proved


@pytest.mark.parametrize("assume", [0, 2])
def test_a_group_stops_with_the_first_of_its_sets_that_is_given_up(assume: int) -> None:
    instance = small()
    subsets = mixed_subsets(instance)
    settings = JointSettings(iterations=60, window=2, assume=assume)
    free = prove_sets(instance, subsets, settings)
    first = min(result.steps for result in free if not result.proved)
    assert any(result.steps > first for result in free)
    held = prove_sets(instance, subsets, settings, clocks=SharedTime([Clock()], allied=True))
    assert all(one.steps <= two.steps for one, two in zip(held, free, strict=True))
    assert sum(result.steps for result in held) < sum(result.steps for result in free)
    groups = list(range(len(subsets)))
    apart = prove_sets(instance, subsets, settings, groups=groups, clocks=SharedTime([Clock() for _ in groups], True))
    assert [result.steps for result in apart] == [result.steps for result in free]


def test_gives_up_by_extrapolation() -> None:
    """Halving progress from -3: 1 + 1/2 + ... ends at -1, 2 + 1 + ... at +1, and steady progress goes on."""
    history = [torch.tensor([-3.0, -3.0, -3.0, -3.0])]
    for step in range(4):
        history.append(history[-1] + torch.tensor([0.3 * 0.5**step, 2 * 0.5**step, 0.1, 0.0]))
    assert not hopeless_after(history[:2], 1).any()
    assert hopeless_after(history, 1).tolist() == [True, False, False, True]
    assert not hopeless_after(history, 0).any()


def test_no_time_returns_the_start() -> None:
    instance = small()
    found = prove_sets(instance, mixed_subsets(instance), STEPS, clocks=SharedTime([Clock(0.0)]))
    assert {result.steps for result in found} == {0}


def test_no_sets_are_no_work() -> None:
    assert prove_sets(small(count=3), []) == []
