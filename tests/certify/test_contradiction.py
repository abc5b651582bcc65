"""Proofs by contradiction, and rounds of search and refinement, against brute force and sampled perturbations."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from citrus.certify.assume import Neurons, Violated, tighten
from citrus.certify.joint import Instance, JointResult, JointSettings, refine_subsets
from citrus.certify.rounds import STRONGEST, RoundSettings, refine_groups
from support.helpers import CLASSES, case_named
from support.joint_cases import DEEP, attack, member_margins, pairs_of, sampled, small, tiny
from torch import Tensor

from citrus.bounds import Box, LinearSettings, crown, lower_planes, margin_rows
from citrus.bounds.chunks import MemoryLimit
from citrus.bounds.margins import wrong_labels
from citrus.certify import ChoicePlanes, SubsetSearch, covers, dual_value
from citrus.errors import CitrusError
from citrus.networks import Graph


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: a second thread only waits when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("assume", [0, 6])
def test_on_two_pixels_only_true_sets_are_proved(assume: int) -> None:
    """Every pair and triple of choices against a grid of perturbations; assumptions find most that are true."""
    true = proved = alone = 0
    settings = JointSettings(iterations=60, assume=assume)
    for seed in range(5):
        instance = tiny(seed, 0.3)
        wrong = wrong_labels(instance.labels, 3).tolist()
        choices = [(i, j) for i, row in enumerate(wrong) for j in row]
        sets = [s for r in (2, 3) for s in itertools.combinations(choices, r) if len({i for i, _ in s}) == r]
        side = torch.linspace(-0.3, 0.3, 121)
        grid = torch.cartesian_prod(side, side).view(-1, 1, 1, 2)
        holds = [bool((member_margins(instance, s, grid).amax(1) > 0).all()) for s in sets]
        safe = {r.choices[0] for r in refine_subsets(instance, [(c,) for c in choices], settings) if r.proved}
        for result, hold in zip(refine_subsets(instance, sets, settings), holds, strict=True):
            assert hold or not result.proved
            true, proved = true + hold, proved + result.proved
            alone += any(choice in safe for choice in result.choices)
    assert true >= proved >= (0.97 if assume else 0.94) * true
    assert proved > alone


BY_CONTRADICTION = {"deep": 0.1, "residual pre-activation": 0.06}


@pytest.mark.parametrize("name", BY_CONTRADICTION)
def test_proofs_by_contradiction_hold_and_can_be_redone(name: str) -> None:
    instance = small(DEEP if name == "deep" else case_named(name), eps=BY_CONTRADICTION[name])
    settings = JointSettings(iterations=25, assume=6)
    found = refine_subsets(instance, pairs_of(instance), settings)
    plain = refine_subsets(instance, pairs_of(instance), replace(settings, assume=0))
    assert all(one.value >= two.value - 1e-5 for one, two in zip(found, plain, strict=True))
    assert any(result.proved and result.assumptions for result in found)
    deltas = sampled(instance, 10_000)
    for result in found:
        if result.proved and result.assumptions:
            assert result.core == result.choices
            for delta in (deltas, attack(instance, result.core)):
                assert (member_margins(instance, result.core, delta).amax(1) > 0).all()
            assert redone(instance, result) > 0


def redone(instance: Instance, result: JointResult) -> float:
    """The value of a proof by contradiction in float64, from what it stores, member by member and bound by bound."""
    net, eps = instance.graph.map(Tensor.double), instance.eps
    place = net.relu_inputs[-1]
    part = Graph(net.nodes[:place], net.input_shape)
    own = [
        tuple(Box(b.centre[i, None].double(), b.radius[i, None].double()) for b in instance.boxes)
        for i, _ in result.choices
    ]
    given = [list(boxes) for boxes in own]
    identity = torch.eye(net.classes, dtype=torch.float64)

    def planes(slopes: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        found = []
        for m, (i, j) in enumerate(result.choices):
            spec = (identity[instance.labels[i]] - identity[j])[None, None]
            chosen = [s[m, None].double() for s in slopes]
            found.append(lower_planes(net, instance.images[i, None].double(), spec, given[m], chosen))
        return torch.cat([p.a.flatten(1) for p in found]), torch.cat([p.b[0] for p in found])

    for assumption in result.assumptions:
        a, b = planes(assumption.slopes)
        for m, (i, _) in enumerate(result.choices):
            last = given[m][-1]
            index, mu = assumption.neurons[m], assumption.multipliers[m].double()
            assert (mu >= 0).all()
            unit = torch.zeros(len(index), last.centre.numel(), dtype=torch.float64)
            unit[torch.arange(len(index)), index] = 1.0
            rows = torch.cat([unit, -unit]).view(1, -1, *last.centre.shape[1:])
            neuron = lower_planes(part, instance.images[i, None].double(), rows, own[m][:-1])
            value = neuron.b[0] + mu @ b - eps * (neuron.a[0].flatten(1) + mu @ a).abs().sum(1)
            low, high = last.lower.flatten(), last.upper.flatten()
            low[index] = torch.maximum(low[index], value[: len(index)])
            high[index] = torch.minimum(high[index], -value[len(index) :])
            high = torch.maximum(low, high)
            shape = last.centre.shape
            given[m][-1] = Box(((low + high) / 2).view(shape), ((high - low) / 2).view(shape))
    return float(dual_value(*planes(result.slopes), eps, result.lambdas)[0])


def searches_of(instance: Instance, size: int) -> tuple[list[list[int]], list[SubsetSearch]]:
    """A search on CROWN's planes for each group of `size` consecutive images."""
    spec = margin_rows(instance.labels, instance.graph.classes)
    bounds = crown(instance.graph, instance.images, instance.eps, spec, LinearSettings(upper=False, planes=True))
    assert bounds.lower_planes is not None
    groups = [list(range(k, k + size)) for k in range(0, len(instance.images), size)]
    parts = (bounds.lower_planes.a.flatten(2), bounds.lower_planes.b, wrong_labels(instance.labels, CLASSES))
    return groups, [
        SubsetSearch(ChoicePlanes.of(*(part[group] for part in parts), instance.eps, ~(bounds.lower[group] > 0)))
        for group in groups
    ]


@pytest.mark.parametrize(
    "settings", [RoundSettings(JointSettings(iterations=40), sets=1), STRONGEST], ids=["plain", "strongest"]
)
def test_rounds_raise_the_count_and_no_perturbation_goes_below_it(settings: RoundSettings) -> None:
    instance = small(count=24, eps=0.045)
    groups, searches = searches_of(instance, 4)
    before = [search.run().survivors for search in searches]
    outcomes = refine_groups(instance, groups, searches, settings)
    after = [outcome.result.survivors for outcome in outcomes]
    assert all(b <= a for b, a in zip(before, after, strict=True))
    assert sum(after) > sum(before)
    deltas = sampled(instance, 2_000)
    for group, outcome, search in zip(groups, outcomes, searches, strict=True):
        labels = [[j for i, j in search.known.planes.choices if i == image] for image in range(len(group))]
        conflicts = [conflict.choices for conflict in outcome.result.conflicts]
        assert covers(conflicts, labels, outcome.result.survivors, outcome.result.parts)
        right = torch.stack(
            [instance.graph(instance.images[i] + deltas).argmax(1) == instance.labels[i] for i in group]
        )
        assert int(right.sum(0).min()) >= outcome.result.survivors
        assert all(set(proof.core) <= {(i, j) for i in group for j in range(CLASSES)} for proof in outcome.proofs)
        assert all(not result.proved for result in outcome.stuck)


def test_rounds_in_lockstep_equal_one_group_after_another() -> None:
    instance = small(count=12, eps=0.06)
    settings = RoundSettings(JointSettings(iterations=30), sets=2, growth=3)
    groups, searches = searches_of(instance, 4)
    together = [o.result.survivors for o in refine_groups(instance, groups, searches, settings)]
    groups, searches = searches_of(instance, 4)
    alone = [refine_groups(instance, [g], [s], settings)[0] for g, s in zip(groups, searches, strict=True)]
    assert together == [outcome.result.survivors for outcome in alone]
    assert refine_groups(instance, [], []) == []
    with pytest.raises(CitrusError, match="groups"):
        refine_groups(instance, groups, searches[:1])
    unrefined = refine_groups(instance, *searches_of(instance, 4), RoundSettings(seconds=0.0))
    assert not any(outcome.proofs or outcome.stuck for outcome in unrefined)
    with pytest.raises(CitrusError, match="sets"):
        RoundSettings(sets=0)


def test_many_members_are_tightened_as_one_by_one() -> None:
    """Whatever the numbers of neurons and choices are that others fill up with zeros; a row without any stays."""
    noise = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise, dtype=torch.float64)

    members = []
    for row, (neurons, choices) in enumerate([(3, 2), (0, 1), (7, 4), (5, 1)]):
        index = torch.randperm(9, generator=noise)[:neurons]
        planes = Neurons(index, draw(neurons, 2, 12), draw(neurons, 2))
        members.append(Violated(row, planes, draw(choices, 12), draw(choices).abs()))
    boxes, multipliers = [], []
    for memory in (10**9, 1):
        box = Box(torch.zeros(4, 9, dtype=torch.float64), torch.full((4, 9), 8.0, dtype=torch.float64))
        multipliers.append(tighten(box, members, eps=0.1, tolerance=1e-6, budget=MemoryLimit(memory)))
        boxes.append(box)
    torch.testing.assert_close(boxes[0].centre, boxes[1].centre)
    torch.testing.assert_close(boxes[0].radius, boxes[1].radius)
    assert (boxes[0].radius[[0, 2, 3]] < 8).any(1).all()
    assert (boxes[0].radius[1] == 8).all()
    for member, *both in zip(members, *multipliers, strict=True):
        torch.testing.assert_close(*both)
        assert both[0].shape == (2 * len(member.neurons.index), len(member.b))
