"""Rounds of search and joint proofs: counts rise, hold, and every group pays for its own work only."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from support.helpers import CLASSES
from support.clocks import Ticks
from support.joint_cases import mixed_subsets, sampled, small

from citrus.bounds import LinearSettings, crown, margin_rows
from citrus.bounds.margins import wrong_labels
from citrus.certify.clock import Clock, SharedTime
from citrus.certify.refine.ascent import JointSettings
from citrus.certify.refine.rounds import STRONGEST, GroupTask, RoundSettings, refine_groups
from citrus.certify.refine.sets import Instance, prove_sets
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


def tasks_of(instance: Instance, size: int, clock: Callable[[], Clock] = Clock) -> list[GroupTask]:
    tasks = []
    for k, planes in enumerate(planes_of(instance, size)):
        search = SubsetSearch(planes)
        tasks.append(GroupTask(range(size * k, size * k + size), search, search.run(), clock()))
    return tasks


@pytest.mark.parametrize(
    "settings", [RoundSettings(JointSettings(iterations=40), sets=1), STRONGEST], ids=["plain", "strongest"]
)
def test_rounds_raise_the_count_and_no_perturbation_goes_below_it(settings: RoundSettings) -> None:
    instance = small(count=24, eps=0.045)
    tasks = tasks_of(instance, 4)
    outcomes = refine_groups(instance, tasks, settings)
    assert all(task.first.survivors <= o.result.survivors for task, o in zip(tasks, outcomes, strict=True))
    assert sum(o.result.survivors for o in outcomes) > sum(task.first.survivors for task in tasks)
    deltas = sampled(instance, 2_000)
    for task, outcome in zip(tasks, outcomes, strict=True):
        labels = [[j for i, j in task.search.known.planes.choices if i == image] for image in range(4)]
        conflicts = [conflict.choices for conflict in outcome.result.conflicts]
        assert covers(conflicts, labels, outcome.result.survivors, outcome.result.parts)
        right = torch.stack(
            [instance.graph(instance.images[i] + deltas).argmax(1) == instance.labels[i] for i in task.places]
        )
        assert int(right.sum(0).min()) >= outcome.result.survivors
        assert all({i for i, _ in proof.core} <= set(task.places) for proof in outcome.proofs)


def test_rounds_in_lockstep_equal_one_group_after_another() -> None:
    instance = small(count=12, eps=0.06)
    settings = RoundSettings(JointSettings(iterations=30), sets=2, growth=3)
    together = refine_groups(instance, tasks_of(instance, 4), settings)
    alone = [refine_groups(instance, [task], settings)[0] for task in tasks_of(instance, 4)]
    assert [o.result.survivors for o in together] == [o.result.survivors for o in alone]
    assert [o.stuck for o in together] == [o.stuck for o in alone]
    assert refine_groups(instance, []) == []


def test_a_group_without_time_is_left_as_it_is() -> None:
    instance = small(count=12, eps=0.06)
    tasks = tasks_of(instance, 4, lambda: Clock(0.0))
    outcomes = refine_groups(instance, tasks)
    assert [o.result for o in outcomes] == [task.first for task in tasks]
    assert not any(o.proofs or o.stuck for o in outcomes)


def test_a_batch_is_paid_by_the_members_of_each_group() -> None:
    ticks = Ticks()
    clocks = [Clock(10.0, ticks) for _ in range(3)]
    shared = SharedTime(clocks)
    ticks.time += 5
    shared.start()
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
    instance, settings = small(count=12, eps=0.06), replace(STRONGEST, search_seconds=1000.0)
    free = refine_groups(instance, tasks_of(instance, 4), settings)
    ticks, tasks = Ticks(), list[GroupTask]()
    for k, planes in enumerate(planes_of(instance, 4)):
        search = Slow(planes, ticks) if k == 0 else SubsetSearch(planes, ticks)
        tasks.append(GroupTask(range(4 * k, 4 * k + 4), search, search.run(), Clock(150.0, ticks)))
    outcomes = refine_groups(instance, tasks, settings)
    assert tasks[0].clock.over
    assert [task.clock.spent for task in tasks[1:]] == [0.0, 0.0]
    for one, two in zip(outcomes[1:], free[1:], strict=True):
        assert (one.result.survivors, one.stuck) == (two.result.survivors, two.stuck)
    assert outcomes[0].result.survivors <= free[0].result.survivors
