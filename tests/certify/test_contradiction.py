"""Proofs by contradiction against brute force and sampled perturbations."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.helpers import case_named
from support.joint_cases import DEEP, attack, member_margins, pairs_of, sampled, small, tiny
from torch import Tensor

from citrus.bounds import Box, lower_planes
from citrus.bounds.chunks import MemoryLimit
from citrus.bounds.margins import wrong_labels
from citrus.certify.refine.sets import Instance, JointResult, JointSettings, prove_sets
from citrus.certify.refine.tightening import NeuronPlanes, Violated, tighten
from citrus.certify.search.planes import dual_value
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
        safe = {r.choices[0] for r in prove_sets(instance, [(c,) for c in choices], settings) if r.proved}
        for result, hold in zip(prove_sets(instance, sets, settings), holds, strict=True):
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
    found = prove_sets(instance, pairs_of(instance), settings)
    plain = prove_sets(instance, pairs_of(instance), replace(settings, assume=0))
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
            image, radius = instance.images[i, None].double(), instance.radius.double()
            found.append(lower_planes(net, image, radius, spec, given[m], chosen))
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
            image = instance.images[i, None].double()
            neuron = lower_planes(part, image, instance.radius.double(), rows, own[m][:-1])
            value = neuron.b[0] + mu @ b - eps * (neuron.a[0].flatten(1) + mu @ a).abs().sum(1)
            low, high = last.lower.flatten(), last.upper.flatten()
            low[index] = torch.maximum(low[index], value[: len(index)])
            high[index] = torch.minimum(high[index], -value[len(index) :])
            high = torch.maximum(low, high)
            shape = last.centre.shape
            given[m][-1] = Box(((low + high) / 2).view(shape), ((high - low) / 2).view(shape))
    return float(dual_value(*planes(result.slopes), eps, result.lambdas)[0])


def test_many_members_are_tightened_as_one_by_one() -> None:
    """Whatever the numbers of neurons and choices are that others fill up with zeros; a row without any stays."""
    noise = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise, dtype=torch.float64)

    wide = torch.full((9,), 8.0, dtype=torch.float64)
    members = []
    for neurons, choices in [(3, 2), (0, 1), (7, 4), (5, 1)]:
        index = torch.randperm(9, generator=noise)[:neurons]
        planes = NeuronPlanes(index, draw(neurons, 2, 12), draw(neurons, 2))
        members.append(Violated(Box(0 * wide, wide), planes, draw(choices, 12), draw(choices).abs()))
    both = [tighten(members, eps=0.1, budget=MemoryLimit(memory)) for memory in (10**9, 1)]
    for member, (box, multipliers), (other, others) in zip(members, *both, strict=True):
        torch.testing.assert_close((box.centre, box.radius, multipliers), (other.centre, other.radius, others))
        assert multipliers.shape == (2 * len(member.neurons.index), len(member.b))
        assert bool((box.radius < 8).any()) == bool(len(member.neurons.index))
