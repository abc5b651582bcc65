"""Leaves stand for their choices, their planes are true where their sides hold, and rounds of splits only help."""

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.helpers import folded, images, samples_in_box
from support.joint_cases import DEEP
from torch import Tensor

from citrus.attacks import Ascent, universal_pgd
from citrus.bounds import Box
from citrus.bounds.margins import margins, wrong_labels
from citrus.certify.alone import prove_alone
from citrus.certify.cascade import Cascade
from citrus.certify.settings import CertifySettings
from citrus.certify.whole import group
from citrus.certify.whole.choices import Known, OpenChoices
from citrus.certify.whole.front import Front, _divided
from citrus.certify.whole.group import prove_large
from citrus.certify.whole.leaves import Branching, Leaves, clipped
from citrus.certify.whole.lowrank import LowRank, Vectors
from citrus.certify.whole.master import Limits, MasterProof, bytes_of, solve_master
from citrus.certify.whole.partition import partition

EPS, COUNT = 0.05, 30
SETTINGS = CertifySettings(searched=20, attack=Ascent(steps=5), budget=60.0)


@functools.cache
def cascade() -> Cascade:
    """Images with the labels that the network gives them, all in one group."""
    net, x = folded(DEEP), images(COUNT)
    return Cascade(net, x, net(x).argmax(1), EPS, SETTINGS)


@functools.cache
def problem() -> tuple[Branching, OpenChoices]:
    with torch.no_grad():
        choices = OpenChoices.of(prove_alone(cascade().question, cascade()._block([(0, torch.arange(COUNT))])))
    graph = cascade().question.graph
    return Branching(graph, choices.images, choices.image, choices.wrong, EPS), choices


@functools.cache
def proof(rounds: int) -> MasterProof:
    branching, choices = problem()
    with torch.no_grad():
        return solve_master(branching, choices, Limits(rounds=rounds))


def holding(leaves: Leaves, entering: Tensor) -> Tensor:
    """At which samples the sides of leaves of one choice hold, given what enters all ReLUs (sample, neuron):
    (leaf, sample)."""
    held = torch.ones(len(leaves), len(entering), dtype=torch.bool)
    for neuron, on in (side.unbind(1) for side in leaves.sides.unbind(1)):
        z = entering.T[neuron.clamp(min=0)]
        held &= torch.where((neuron < 0)[:, None], True, torch.where(on[:, None] > 0, z > 0, z < 0))
    return held


def test_there_is_something_to_split() -> None:
    found = proof(2)
    assert len(found.front.leaves) > len(problem()[1]) + 5
    assert len(found.front.closed) > 0
    assert found.front.leaves.sides.shape[1] == 2


def test_planes_hold_where_sides_do_and_leaves_share_out_every_perturbation() -> None:
    branching, choices = problem()
    front, graph = proof(2).front, branching.graph.double()
    planes, leaves = front.pool, front.leaves
    wrong = wrong_labels(choices.images.labels, graph.classes).tolist()
    for choice in range(len(choices)):
        image = int(choices.image[choice])
        centre = choices.images.centre[image : image + 1].double()
        x = samples_in_box(centre, torch.full_like(centre, EPS), 400, seed=choice)
        values = graph.values(x)
        entering = torch.cat([values[i].flatten(1) for i in graph.relu_inputs], 1)
        label = choices.images.labels[image : image + 1].expand(len(x))
        row = wrong[image].index(int(choices.wrong[choice]))
        margin = margins(values[-1], label)[:, row]
        mine, done = (some.choice == choice for some in (leaves, front.closed))
        held, closed = holding(leaves[mine], entering), holding(front.closed[done], entering)
        assert bool((held.sum(0) + closed.sum(0) == 1).all())
        assert bool((margin[closed.any(0)] > 0).all())
        t = ((x - centre) / EPS).flatten(1)
        for leaf, at in zip(mine.nonzero()[:, 0].tolist(), held, strict=True):
            used = front.uses[front.uses[:, 0] == leaf, 1]
            lower = t[at] @ planes.a[used].T + planes.b[used]
            assert bool((lower <= margin[at, None] + 1e-12).all())


def test_rounds_of_splits_prove_more_and_nothing_is_broken() -> None:
    whole, split = proof(0), proof(2)
    assert split.bound < whole.bound - 0.3
    assert [bound for _, bound in split.curve][-1] <= split.curve[0][1]
    branching, choices = problem()
    x, y = choices.images.centre, choices.images.labels
    attack = universal_pgd(branching.graph, x, y, torch.zeros_like(y), EPS, Ascent(steps=40, restarts=8))
    assert int(attack.fooled.sum()) <= split.lost <= whole.lost


def test_a_group_in_one_dual_is_no_worse_than_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    one, where = cascade(), torch.arange(COUNT)
    with torch.no_grad():
        found = prove_large(one.question, one.parts(where), search=True)
        monkeypatch.setattr(group, "solve_master", lambda *_, **__: replace(proof(0), bound=math.inf))
        parts = prove_large(one.question, one.parts(where), search=True)
        assert not parts.masters
    assert found.certified >= parts.certified
    assert found.certified <= found.attacked <= found.correct == COUNT


def test_little_memory_makes_several_problems_whose_losses_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    branching, choices = problem()
    for count in (2, 3):
        parts = partition(choices, count)
        assert sorted(torch.cat(parts).tolist()) == choices.image.unique().tolist()
        assert max(map(len, parts)) - min(map(len, parts)) <= count
        lost = 0
        for part in parts:
            mine = choices.of_images(part)
            assert mine.keys == [key for key in choices.keys if key[0] in choices.images.index[part].tolist()]
            own = Branching(branching.graph, mine.images, mine.image, mine.wrong, EPS)
            with torch.no_grad():
                lost += solve_master(own, mine, Limits(rounds=0)).lost
        assert lost >= proof(0).lost
    limit, sizes = bytes_of(10, 20, 72), list[int]()
    little = Cascade(branching.graph, images(COUNT), cascade().labels, EPS, replace(SETTINGS, memory=limit))

    def solve(*given: Any) -> MasterProof:
        found = solve_master(*given)
        sizes.append(bytes_of(len(found.front.leaves), len(found.front.pool), 72))
        return found

    monkeypatch.setattr(group, "solve_master", solve)
    with torch.no_grad():
        prove_large(little.question, little.parts(torch.arange(COUNT)), search=False)
    assert len(sizes) > 1
    assert max(sizes) <= limit


def test_vectors_of_two_sides_add_up() -> None:
    v = Vectors.random(20, 3, torch.device("cpu")).v
    is_open = torch.ones(40, dtype=torch.bool)
    is_open[[3, 25]] = False  # the first side of one, the second of another
    one, other = _divided(v, is_open).chunk(2)
    both = is_open[:20] & is_open[20:]
    torch.testing.assert_close((one + other)[both], v[both])
    assert float((one * other).sum(1)[both].abs().max()) < 1e-5
    for part in (one, other):
        torch.testing.assert_close((part**2).sum(1)[both], part[both, 0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(other[3], v[3])
    torch.testing.assert_close(one[5], v[5])


def test_children_begin_where_their_parents_are() -> None:
    branching, choices = problem()
    facts = Known().about(choices)
    with torch.no_grad():
        front = Front.first(branching, choices.leaves, choices.adaptive)
        relaxed = LowRank(front.problem(facts))
        relaxed.advance(20)
        _, after = front.split(branching, relaxed, facts)
    assert 0 < float(after.marked.sum()) <= float(relaxed.marked.sum()) + 0.01  # that of leaves which closed is gone
    torch.testing.assert_close(after.vectors.pixels, relaxed.vectors.pixels)


def test_clipped_boxes_end_at_zero() -> None:
    box = Box(torch.tensor([0.3, -0.2, 1.0, -1.0]), torch.tensor([1.0, 0.5, 0.25, 0.25]))
    on, off = clipped(box, torch.ones(4, dtype=torch.bool)), clipped(box, torch.zeros(4, dtype=torch.bool))
    assert on.lower.tolist() == [0, 0, 0, 0]
    assert off.upper.tolist() == [0, 0, 0, 0]
    assert bool((on.upper >= box.upper.clamp(min=0)).all())
    assert bool((off.lower <= box.lower.clamp(max=0)).all())
