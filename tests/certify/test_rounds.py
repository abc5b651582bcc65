"""Rounds of search and joint proofs: counts rise, hold, and every group pays for its own work only."""

from collections.abc import Callable, Iterator

import pytest
import torch
from support.clocks import Ticks
from support.helpers import CLASSES
from support.joint_cases import mixed_subsets, sampled, small

from citrus.bounds import LinearSettings, crown, margin_rows
from citrus.bounds.margins import wrong_labels
from citrus.certify.clock import Clock, SharedTime
from citrus.certify.refine.rounds import OpenGroup, refine_groups
from citrus.certify.refine.sets import STRONGEST, Instance, JointSettings, prove_sets
from citrus.certify.search.planes import ChoicePlanes
from citrus.certify.search.search import SearchResult, SubsetSearch
from citrus.checker.cover import covers


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: a second thread only waits when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def planes_of(instance: Instance, size: int) -> list[ChoicePlanes]:
    """CROWN's planes of each group of `size` consecutive images."""
    spec = margin_rows(instance.labels, instance.graph.classes)
    bounds = crown(instance.graph, instance.images, instance.eps, spec, LinearSettings(upper=False, planes=True))
    assert bounds.lower_planes is not None
    parts = (bounds.lower_planes.a.flatten(2), bounds.lower_planes.b, wrong_labels(instance.labels, CLASSES))
    groups = torch.arange(len(instance.images)).split(size)
    return [ChoicePlanes.of(*(part[g] for part in parts), instance.eps, ~(bounds.lower[g] > 0)) for g in groups]


def groups_of(instance: Instance, size: int, clock: Callable[[], Clock] = Clock) -> list[OpenGroup]:
    planes = enumerate(planes_of(instance, size))
    return [OpenGroup(range(size * k, size * k + size), SubsetSearch(p), clock()) for k, p in planes]


@pytest.mark.parametrize("settings", [JointSettings(iterations=40, sets=1), STRONGEST], ids=["plain", "strongest"])
def test_rounds_raise_the_count_and_no_perturbation_goes_below_it(settings: JointSettings) -> None:
    instance = small(count=24, eps=0.045)
    groups = groups_of(instance, 4)
    refine_groups(instance, groups, settings)
    assert all(group.first <= group.result.survivors for group in groups)
    assert sum(group.result.survivors for group in groups) > sum(group.first for group in groups)
    deltas = sampled(instance, 2_000)
    for group in groups:
        labels = [[j for i, j in group.search.known.planes.choices if i == image] for image in range(4)]
        conflicts = [conflict.choices for conflict in group.result.conflicts]
        assert covers(conflicts, labels, group.result.survivors, group.result.parts)
        right = torch.stack(
            [instance.graph(instance.images[i] + deltas).argmax(1) == instance.labels[i] for i in group.places]
        )
        assert int(right.sum(0).min()) >= group.result.survivors
        assert all({i for i, _ in proof.core} <= set(group.places) for proof in group.proofs)


def test_rounds_in_lockstep_equal_one_group_after_another() -> None:
    instance = small(count=12, eps=0.06)
    settings = JointSettings(iterations=30, sets=2)
    together, alone = groups_of(instance, 4), groups_of(instance, 4)
    refine_groups(instance, together, settings)
    for group in alone:
        refine_groups(instance, [group], settings)
    assert [(g.result.survivors, g.stuck) for g in together] == [(g.result.survivors, g.stuck) for g in alone]
    refine_groups(instance, [])


def test_a_group_without_time_is_left_as_it_is() -> None:
    instance = small(count=12, eps=0.06)
    groups = groups_of(instance, 4)
    before = [group.result for group in groups]
    for group in groups:
        group.clock.seconds = 0.0
    refine_groups(instance, groups)
    assert [group.result for group in groups] == before
    assert not any(group.proofs or group.stuck for group in groups)


def test_a_batch_is_paid_by_the_members_of_each_group() -> None:
    ticks = Ticks()
    clocks = [Clock(10.0, ticks) for _ in range(3)]
    ticks.time += 5
    shared = SharedTime(clocks)
    ticks.time += 12
    shared.charge(torch.tensor([0, 2, 0, 0]))
    assert [clock.spent for clock in clocks] == [9.0, 0.0, 3.0]
    ticks.time += 8
    shared.charge(torch.tensor([2, 0, 0, 0]))
    assert [clock.spent for clock in clocks] == [15.0, 0.0, 5.0]
    assert [(clock.left, clock.over) for clock in clocks] == [(0.0, True), (10.0, False), (5.0, False)]
    assert shared.stopped(torch.tensor([2, 0, 1])).tolist() == [False, True, False]
    shared.give_up(torch.tensor([2]))
    assert shared.stopped(torch.tensor([2, 0, 1])).tolist() == [False, True, False]
    allied = SharedTime(clocks, allied=True)
    allied.give_up(torch.tensor([2]))
    assert allied.stopped(torch.tensor([2, 0, 1])).tolist() == [True, True, False]


@pytest.mark.parametrize("assume", [0, 2])
def test_sets_leave_the_batch_when_their_group_has_no_time_left(assume: int) -> None:
    """The groups beside it take the steps that they take alone, and what was found in time is kept."""
    instance, settings = small(), JointSettings(iterations=30, assume=assume)
    sets = mixed_subsets(instance)
    groups = [k % 2 for k in range(len(sets))]
    free = prove_sets(instance, sets, settings)
    clocks = [Clock(6.0, Ticks(1.0)), Clock()]
    held = prove_sets(instance, sets, settings, groups=groups, clocks=SharedTime(clocks))
    for group, one, two in zip(groups, held, free, strict=True):
        assert one.steps == two.steps if group else one.steps <= two.steps
        assert one.proved == two.proved if group else one.proved <= two.proved
    assert clocks[0].over
    assert sum(result.steps for result in held) < sum(result.steps for result in free)
    assert max(result.steps for result in held[::2]) > 0


class Slow(SubsetSearch):
    """A search that takes a hundred seconds each time."""

    def run(self, seconds: float = float("inf")) -> SearchResult:
        assert isinstance(self.now, Ticks)
        self.now.time += 100
        return super().run(seconds)


def test_a_slow_group_does_not_take_the_time_of_the_others() -> None:
    instance, free = small(count=12, eps=0.06), groups_of(small(count=12, eps=0.06), 4)
    refine_groups(instance, free, STRONGEST)
    ticks, groups = Ticks(), list[OpenGroup]()
    for k, planes in enumerate(planes_of(instance, 4)):
        search = Slow(planes, ticks) if k == 0 else SubsetSearch(planes, ticks)
        groups.append(OpenGroup(range(4 * k, 4 * k + 4), search, Clock(250.0, ticks)))
    refine_groups(instance, groups, STRONGEST)
    assert groups[0].clock.over
    assert [group.clock.spent for group in groups[1:]] == [0.0, 0.0]
    assert [(g.result.survivors, g.stuck) for g in groups[1:]] == [(g.result.survivors, g.stuck) for g in free[1:]]
    assert groups[0].result.survivors <= free[0].result.survivors
