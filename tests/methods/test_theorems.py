"""The paper's theorems on networks so small that every perturbation of a grid can be tried.

The perturbations are a grid of the box, its corners and the origin among them. The statements about k-common
perturbations are about any set of perturbations, so over the grid they are tested exactly, not by sampling. What
`certify` proves holds for the whole box, so over the grid, too.

fooled[u, i]    perturbation u is adversarial for input i                          (A_f of the paper)
C(k)            perturbations that are adversarial for at least k inputs           (k-cp set)
S(i)            perturbations that are adversarial for input i                     (adversarial set)
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citrus.attacks import Ascent
from citrus.bounds import margins
from citrus.certify.cascade import Cascade, certify
from citrus.certify.settings import VERIFIERS, CertifySettings
from citrus.networks import Graph, graph

EPS = 0.125  # exact in binary, so that the corners of the grid are those of the box that is certified
INPUTS = 12
SEEDS = range(12)
ATTACK = Ascent(steps=5)


@dataclass(frozen=True, eq=False)
class World:
    """A network, its inputs, and all that the perturbations of the grid do to them."""

    plain: Graph
    images: Tensor
    labels: Tensor
    grid: Tensor  # (u, 1, 1, pixel)
    scores: Tensor  # (u, input, class) float64

    @functools.cached_property
    def margin(self) -> Tensor:
        """(u, input): the smallest margin."""
        return margins(self.scores.flatten(0, 1), self.labels.repeat(len(self.grid))).amin(1).view(-1, len(self.labels))

    @functools.cached_property
    def fooled(self) -> Tensor:
        return self.margin <= 0

    def loss(self, name: str) -> Tensor:
        """(u, input)"""
        return LOSSES[name](self)

    def common(self, k: int) -> Tensor:
        """(u,): C(k)"""
        return self.fooled.sum(1) >= k

    def most(self, members: Sequence[int] | Tensor) -> int:
        """Z: the largest k for which some inputs have a k-common perturbation."""
        return int(self.fooled[:, torch.as_tensor(members)].sum(1).max())


def cross_entropy(world: World) -> Tensor:
    labels = world.labels.expand(len(world.grid), -1)
    return F.cross_entropy(world.scores.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


# The paper's assumption, that adversarial perturbations have at least the loss of safe ones, holds for the first three:
# their loss falls with the smallest margin. It does not hold for cross-entropy with more than two classes.
STANDARD: dict[str, Callable[[World], Tensor]] = {
    "0-1": lambda world: world.fooled.double(),
    "margin": lambda world: -world.margin,
    "hinge": lambda world: (0.2 - world.margin).relu(),
}
LOSSES = STANDARD | {"cross-entropy": cross_entropy}


@functools.cache
def world(seed: int) -> World:
    """Two or three pixels, two hidden layers; about one input in six is misclassified as it is."""
    pixels, generator = 2 + seed % 2, torch.Generator().manual_seed(seed)
    layers = [nn.Flatten(), nn.Linear(pixels, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)]
    network = nn.Sequential(*layers).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        x = torch.rand(INPUTS, 1, 1, pixels, generator=generator)
        layers[-1].bias -= network(x).mean(0)  # else one class may win everywhere
    plain = graph(network, (1, 1, pixels)).map(Tensor.detach)
    y = plain(x).argmax(1)
    y[::7] = (y[::7] + 1) % 3
    axis = torch.linspace(-EPS, EPS, 33 if pixels == 2 else 9)
    assert axis[0] == -EPS
    assert 0 in axis
    grid = torch.cartesian_prod(*[axis] * pixels).view(-1, 1, 1, pixels)
    double = plain.map(Tensor.double)
    scores = double((grid[:, None] + x).double().flatten(0, 1)).view(len(grid), INPUTS, 3)
    return World(plain, x, y, grid, scores)


def mean(values: Tensor) -> float:
    return math.fsum(values.tolist()) / len(values)  # one rounding, so that <= between sums stays <=


def worst(w: World, name: str) -> tuple[float, int]:
    """max over u of the mean loss, and the number of the perturbation u* that reaches it."""
    means = [mean(row) for row in w.loss(name)]
    return max(means), means.index(max(means))


def bound(w: World, name: str, k: int) -> float:
    """E(k): the mean over inputs of the worst loss in C(k)."""
    assert bool(w.common(k).any())
    return mean(w.loss(name)[w.common(k)].amax(0))


@pytest.mark.parametrize("name", LOSSES)
def test_theorem_1_bounds_rise_from_the_worst_case_to_single_inputs(name: str) -> None:
    """max_u E[L] <= E(kappa*) <= ... <= E(1) with kappa* the number of inputs that u* fools; for any loss.

    One step more, E(1) <= E(0), is the worst case of each input by itself: C(0) is the whole box.
    """
    strict, deep = 0, 0
    for seed in SEEDS:
        w = world(seed)
        value, u = worst(w, name)
        kappa = int(w.fooled[u].sum())
        chain = [value, *(bound(w, name, k) for k in range(kappa, -1, -1))]
        assert chain == sorted(chain)
        strict += chain[0] < chain[-1]
        deep += kappa >= 3
        for k in range(1, INPUTS):
            assert not bool((w.common(k + 1) & ~w.common(k)).any())  # lemma 2: the sets are nested
    assert strict >= len(SEEDS) // 2
    assert deep >= len(SEEDS) // 2


def test_theorem_1_needs_k_up_to_kappa() -> None:
    """Beyond kappa* the set C(k) need not hold u*, and E(k) is a bound no longer: so no training on a large k."""
    below = 0
    for seed in SEEDS:
        w = world(seed)
        value, u = worst(w, "margin")
        beyond = range(int(w.fooled[u].sum()) + 1, w.most(range(INPUTS)) + 1)
        below += any(bound(w, "margin", k) < value for k in beyond)
    assert below > 0


@pytest.mark.parametrize("name", LOSSES)
def test_theorem_2_the_other_inputs_hold_all_that_two_share(name: str) -> None:
    """L_2CP(x0) <= max of the loss at x0 over the adversarial sets of the OTHER inputs.

    What holds precisely: C(2) is a subset of the union of the others' sets, because one of any two inputs is not x0.
    So the inequality holds for every loss wherever C(2) is not empty. Case 2 of the proof, C(2) and S(x0) disjoint, is
    no exception if C(2) has a point, which then fools two others and not x0; if C(2) is empty, there is no maximum on
    the left and nothing is claimed. Lemma 3, that the maximum over C(2) lies in S(x0), is what needs the assumption.
    """
    cases = {"meet": 0, "disjoint": 0, "empty": 0, "tight": 0, "own set left out": 0}
    for seed in SEEDS:
        w = world(seed)
        for members in torch.arange(INPUTS).split(3):  # small batches: sets that meet, that do not, and none at all
            fooled, loss = w.fooled[:, members], w.loss(name)[:, members]
            two = fooled.sum(1) >= 2
            for i in range(len(members)):
                own, others = fooled[:, i], torch.cat([fooled[:, :i], fooled[:, i + 1 :]], 1).any(1)
                assert not bool((two & ~others).any())
                assert torch.equal(two & own, own & others)  # what CITRUS trains on holds every perturbation shared
                if not bool(two.any()):
                    assert not bool((own & others).any())
                    cases["empty"] += 1
                    continue
                left, right = loss[two, i].max(), loss[others, i].max()
                assert left <= right
                cases["tight"] += bool(left == right)
                cases["own set left out"] += bool((own & ~others).any())
                if bool((two & own).any()):
                    cases["meet"] += 1
                    if name in STANDARD:
                        assert left == loss[two & own, i].max()
                else:
                    cases["disjoint"] += 1
                    assert not bool(own[two].any())  # safe wherever two inputs are fooled at once
    assert min(cases.values()) > 0, cases


def partitions(generator: torch.Generator) -> Iterator[list[Tensor]]:
    """The inputs in order and shuffled, in batches of every size that divides their number, and in uneven ones."""
    for order in (torch.arange(INPUTS), torch.randperm(INPUTS, generator=generator)):
        yield from (list(order.split(n)) for n in range(1, INPUTS + 1) if INPUTS % n == 0)
        yield [order[:1], order[1:6], order[6:]]


def test_theorem_3_batches_bound_the_worst_case_of_the_whole_set() -> None:
    strict = 0
    for seed in SEEDS:
        w = world(seed)
        whole = w.most(range(INPUTS))
        for parts in partitions(torch.Generator().manual_seed(seed)):
            lost = sum(w.most(part) for part in parts)
            halves = sum(w.most(half) for part in parts for half in part.chunk(2))
            assert whole <= lost <= halves  # finer batches bound it from farther
            strict += whole < lost
        alone = sum(w.most([i]) for i in range(INPUTS))
        assert alone == int(w.fooled.any(0).sum())  # batch size 1 is ordinary certification
        assert 1 - worst(w, "0-1")[0] == pytest.approx(1 - whole / INPUTS)
    assert strict > 0


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_certified_percentages_are_below_the_exact_worst_case(verifier: str) -> None:
    """For every partition, group by group against the group's own worst case, and in total against the whole set's."""
    proved, exact = 0, 0
    for seed in SEEDS[:2]:
        w = world(seed)
        truth = 100 * (1 - w.most(range(INPUTS)) / INPUTS)
        cases: list[tuple[int, Any]] = [(n, "dataset") for n in (4, 12)] + [(5, "correct"), (5, "adaptive")]
        for size, grouping in cases:
            settings = CertifySettings(group_size=size, grouping=grouping, verifier=verifier, attack=ATTACK)
            result = certify(w.plain, w.images, w.labels, EPS, settings)
            for row in result.rows:
                assert row.certified <= len(row.index) - w.most(row.index)
                exact += row.certified == len(row.index) - w.most(row.index)
            assert result.certified <= truth + 1e-9
            proved += sum(row.certified for row in result.rows)
    assert proved > 0
    assert exact > 0


def test_any_partition_that_a_user_makes_is_a_bound_too() -> None:
    w = world(3)
    truth = INPUTS - w.most(range(INPUTS))
    order = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(5))
    for parts in (order.split(4), [order[:1], order[1:3], order[3:]], order.split(INPUTS)):
        settings = CertifySettings(group_size=INPUTS, grouping="dataset", attack=ATTACK)
        results = [certify(w.plain, w.images[p], w.labels[p], EPS, settings) for p in parts]
        assert 0 < sum(row.certified for result in results for row in result.rows) <= truth


def test_adaptive_groups_are_a_partition_that_puts_images_proved_alone_apart() -> None:
    for seed in SEEDS[:6]:
        w = world(seed)
        right = (w.plain(w.images).argmax(1) == w.labels).nonzero().flatten().tolist()
        settings = CertifySettings(group_size=4, grouping="adaptive", verifier="zeng", attack=ATTACK)
        single = certify(w.plain, w.images, w.labels, EPS, replace(settings, group_size=1, grouping="dataset"))
        alone = {row.index[0] for row in single.rows if row.certified}
        for block in (5, 100):
            result = certify(w.plain, w.images, w.labels, EPS, replace(settings, block=block))
            assert sorted(i for row in result.rows for i in row.index) == right
            assert all(set(row.index) <= alone or not alone & set(row.index) for row in result.rows)
            assert sum(row.certified for row in result.rows) >= len(alone)


def test_on_a_linear_network_the_search_is_exact() -> None:
    """Its planes are the margins themselves: the count falls with eps, and a perturbation is known that reaches it."""
    torch.manual_seed(0)
    plain = graph(nn.Sequential(nn.Flatten(), nn.Linear(9, 4)).eval(), (1, 3, 3)).map(Tensor.detach)
    x = torch.rand(12, 1, 3, 3)
    y = plain(x).argmax(1)
    before, seen = [4, 4, 4], set()
    settings = CertifySettings(group_size=4, verifier="zeng", attack=ATTACK)
    for eps in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        (block,) = Cascade(plain, x, y, eps, settings).blocks()
        counts = [row.certified for row in block.rows]
        assert all(now <= then for now, then in zip(counts, before, strict=True))
        for k, row in enumerate(block.rows):
            if row.certified == row.correct:
                continue
            assert block.work[k].result.exact
            delta = block.work[k].result.delta
            assert delta is not None
            members = list(row.index)
            values = margins(plain(x[members] + delta.float().view(1, 3, 3)), y[members]).amin(1)
            assert int((values <= 1e-5).sum()) == row.correct - row.certified
        before = counts
        seen.update(counts)
    assert len(seen) >= 4
