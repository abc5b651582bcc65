"""Joint refinement against sampled and attacked perturbations, brute force, and the program it is the dual of."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, PIXELS, Case, case_named, folded, images
from torch import Tensor, nn

from citrus.attacks.ascent import Ascent, ascend
from citrus.bounds import LinearSettings, crown, margin_rows
from citrus.bounds.interval import Box
from citrus.bounds.margins import wrong_labels
from citrus.certify import Planes, SubsetSearch, covers, dual_value
from citrus.certify.climb import hopeless_after
from citrus.certify.joint import Instance, JointResult, JointSettings, Subset, refine_subsets
from citrus.certify.milp import _solve, installed
from citrus.certify.rounds import RoundSettings, refine_groups
from citrus.errors import CitrusError
from citrus.networks import Graph, graph

EPS = 0.1
STEPS = JointSettings(iterations=25, window=0)


def _deep() -> list[nn.Module]:
    body = [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2), nn.ReLU(), nn.Flatten()]
    return [*body, nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, CLASSES)]


DEEP = Case("deep", _deep, 3)
CASES = [DEEP, *(case_named(name) for name in ("linear", "residual stack", "residual pre-activation", "shared relu"))]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: a second thread only waits when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def instance_of(net: Graph, x: Tensor, eps: float = EPS) -> Instance:
    """The images with the labels the network gives them."""
    labels = net(x).argmax(1)
    bounds = crown(net, x, eps, margin_rows(labels, net.classes), LinearSettings(upper=False))
    return Instance(net, x, labels, bounds.pre_activations, eps)


def small(case: Case = DEEP, count: int = 6, eps: float = EPS) -> Instance:
    return instance_of(folded(case), images(count), eps)


def mixed_subsets(instance: Instance) -> list[Subset]:
    """Subsets of one to four choices."""
    wrong = wrong_labels(instance.labels, instance.graph.classes).tolist()
    chosen = [(i, row[i % len(row)]) for i, row in enumerate(wrong)]
    other = [(i, row[(i + 1) % len(row)]) for i, row in enumerate(wrong)]
    pairs = list(itertools.combinations(chosen, 2))[:8]
    return [(chosen[0],), *pairs, tuple(chosen[:4]), (other[1],), tuple(other[2:5]), (chosen[1], other[2], chosen[3])]


def member_margins(instance: Instance, subset: Subset, deltas: Tensor) -> Tensor:
    """The margins of a subset's choices at each delta: (delta, member)."""
    columns = []
    for image, label in subset:
        scores = instance.graph(instance.images[image] + deltas)
        columns.append(scores[:, instance.labels[image]] - scores[:, label])
    return torch.stack(columns, 1)


def sampled(instance: Instance, count: int) -> Tensor:
    """Perturbations of the box, half of them corners."""
    generator = torch.Generator().manual_seed(5)
    deltas = 2 * torch.rand(count, *instance.graph.input_shape, generator=generator) - 1
    deltas[::2] = deltas[::2].sign()
    return deltas * instance.eps


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rises_from_the_start_and_is_the_dual_value_of_what_is_returned(case: Case) -> None:
    instance = small(case)
    subsets = mixed_subsets(instance)
    first = refine_subsets(instance, subsets, replace(STEPS, iterations=0))
    found = refine_subsets(instance, subsets, STEPS)
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
    found = refine_subsets(instance, mixed_subsets(instance), STEPS)
    deltas = sampled(instance, 10_000)
    for result in found:
        margins = member_margins(instance, result.choices, deltas)
        assert (margins >= deltas.flatten(1) @ result.a.float().T + result.b.float() - 1e-4).all()
    for result in [result for result in found if result.proved]:
        assert (member_margins(instance, result.core, deltas).amax(1) > 0).all()

        def objective(delta: Tensor, restart: int, core: Subset = result.core) -> tuple[Tensor, Tensor]:
            worst = -member_margins(instance, core, delta).amax(1)
            return worst, worst.detach()

        delta = ascend(lambda restart: sampled(instance, 20), objective, lambda d: d.clamp(-EPS, EPS), EPS, Ascent(20))
        assert (member_margins(instance, result.core, delta).amax(1) > 0).all()


def tiny(seed: int, eps: float) -> Instance:
    """Two pixels, so that a grid sees every perturbation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Flatten(), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)]
    net = nn.Sequential(*layers).requires_grad_(False).eval()
    for layer in (layers[1], layers[3], layers[5]):
        layer.weight *= 2.5  # type: ignore[operator]
    return instance_of(graph(net, (1, 1, 2)), torch.rand(5, 1, 1, 2, generator=generator), eps)


def test_on_two_pixels_only_true_sets_are_proved() -> None:
    """Every pair and triple of choices against a grid of perturbations; most that are true are found."""
    true = proved = alone = 0
    for seed in range(6):
        instance = tiny(seed, 0.3)
        wrong = wrong_labels(instance.labels, 3).tolist()
        choices = [(i, j) for i, row in enumerate(wrong) for j in row]
        sets = [s for r in (2, 3) for s in itertools.combinations(choices, r) if len({i for i, _ in s}) == r]
        side = torch.linspace(-0.3, 0.3, 121)
        grid = torch.cartesian_prod(side, side).view(-1, 1, 1, 2)
        holds = [bool((member_margins(instance, s, grid).amax(1) > 0).all()) for s in sets]
        found = refine_subsets(instance, sets, JointSettings(iterations=60))
        single = refine_subsets(instance, [(choice,) for choice in choices], JointSettings(iterations=60))
        safe = {result.choices[0] for result in single if result.proved}
        for result, hold in zip(found, holds, strict=True):
            assert hold or not result.proved
            true, proved = true + hold, proved + result.proved
            alone += any(choice in safe for choice in result.choices)
    assert true >= proved > alone + 0.5 * (true - alone)


@pytest.mark.skipif(not installed(), reason="needs highspy")
def test_reaches_the_linear_program_of_the_joint_triangle_relaxation() -> None:
    instance = small(case_named("mlp"), eps=0.15)
    subsets = [s for s in mixed_subsets(instance) if len(s) > 1]
    found = refine_subsets(instance, subsets, JointSettings(iterations=400, decay=0.99, window=0))
    for result in found:
        optimum = triangle_program(instance, result.choices)
        assert result.value <= optimum + 1e-5
        assert result.proved or result.value >= optimum - 0.01


def triangle_program(instance: Instance, subset: Subset) -> float:
    """min over delta and hidden values of the largest margin of the subset, for a network of linear layers and ReLUs.

    Variables: delta, the outputs of both ReLU layers of every member, t.
    """
    (w1, b1), (w2, b2), (w3, b3) = (
        (n.op.weight.double().numpy(), n.op.bias.double().numpy())
        for n in instance.graph.nodes
        if hasattr(n.op, "weight") and n.op.weight.dim() == 2
    )
    widths = [len(b1), len(b2)]
    total = PIXELS + len(subset) * sum(widths) + 1
    low, high = np.zeros(total), np.full(total, np.inf)
    low[:PIXELS], high[:PIXELS], low[-1] = -instance.eps, instance.eps, -np.inf
    rows: list[np.ndarray] = []
    right: list[float] = []

    def below(row: np.ndarray, bound: float) -> None:
        rows.append(row)
        right.append(bound)

    for m, (image, label) in enumerate(subset):
        first = PIXELS + m * sum(widths)
        entering = np.zeros((widths[0], total))
        entering[:, :PIXELS] = w1
        offset = w1 @ instance.images[image].flatten().double().numpy() + b1
        for layer, start in enumerate((first, first + widths[0])):
            box = instance.boxes[layer]
            lower, upper = (t[image].double().numpy() for t in (box.lower, box.upper))
            for n in range(widths[layer]):
                out = np.zeros(total)
                out[start + n] = 1
                if upper[n] <= 0:
                    high[start + n] = 0
                    continue
                below(entering[n] - out, -offset[n])
                slope = 1.0 if lower[n] >= 0 else upper[n] / (upper[n] - lower[n])
                below(out - slope * entering[n], slope * (offset[n] - min(lower[n], 0)))
            if layer == 0:
                entering = np.zeros((widths[1], total))
                entering[:, start : start + widths[0]] = w2
                offset = b2
        row = np.zeros(total)
        truth = int(instance.labels[image])
        row[first + widths[0] : first + sum(widths)] = w3[truth] - w3[label]
        row[-1] = -1
        below(row, b3[label] - b3[truth])
    cost = np.zeros(total)
    cost[-1] = 1
    solver = _solve(cost, (low, high), (np.array(rows), np.array(right)), 0, 60.0)
    return float(solver.getInfo().objective_function_value)


def assert_same(one: JointResult, two: JointResult) -> None:
    assert (one.choices, one.proved, one.core, one.steps) == (two.choices, two.proved, two.core, two.steps)
    assert one.value == pytest.approx(two.value, abs=1e-4)


@pytest.mark.parametrize("case", [DEEP, case_named("residual stack")], ids=str)
def test_one_by_one_and_in_chunks_as_in_one_batch(case: Case) -> None:
    instance = small(case)
    subsets = mixed_subsets(instance)
    settings = JointSettings(iterations=15)
    batch = refine_subsets(instance, subsets, settings)
    assert len({result.steps for result in batch}) > 1
    for result, subset in zip(batch, subsets, strict=True):
        assert_same(result, refine_subsets(instance, [subset], settings)[0])
    for memory in (1, 200_000):
        for one, two in zip(batch, refine_subsets(instance, subsets, replace(settings, memory=memory)), strict=True):
            assert_same(one, two)


def test_starts_are_used_and_a_better_start_is_never_lost() -> None:
    instance = small()
    subsets = [s for s in mixed_subsets(instance) if len(s) == 2]
    found = refine_subsets(instance, subsets, STEPS)
    for result in found:
        starts = {choice: tuple(s[m] for s in result.slopes) for m, choice in enumerate(result.choices)}
        again = refine_subsets(instance, [result.choices], replace(STEPS, iterations=0), starts)[0]
        for mine, given in zip(again.slopes, result.slopes, strict=True):
            assert torch.equal(mine, given)
        torch.testing.assert_close(again.a, result.a)


def test_a_member_that_is_safe_alone_is_the_whole_proof() -> None:
    instance = small(eps=0.003)
    wrong = wrong_labels(instance.labels, CLASSES)
    result = refine_subsets(instance, [tuple((i, int(wrong[i, 0])) for i in range(5))])[0]
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
        spoilt, healthy = refine_subsets(broken, subsets, settings)
        assert not spoilt.proved
        assert spoilt.core == ()
        assert healthy.proved


def test_a_team_stops_with_the_first_of_its_subsets_that_is_given_up() -> None:
    instance = small(eps=0.5)  # nothing can be proved
    subsets = mixed_subsets(instance)
    settings = JointSettings(iterations=60, window=3)
    free = refine_subsets(instance, subsets, settings)
    assert not any(result.proved for result in free)
    assert len({result.steps for result in free}) > 1
    teams = [0] * (len(subsets) - 1) + [1]
    held = refine_subsets(instance, subsets, settings, teams=teams)
    assert {result.steps for result in held[:-1]} == {min(result.steps for result in free[:-1])}
    assert held[-1].steps == free[-1].steps


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
    found = refine_subsets(instance, mixed_subsets(instance), replace(STEPS, seconds=0.0))
    assert {result.steps for result in found} == {0}


def test_refuses_what_is_no_subset() -> None:
    instance = small(count=3)
    right, (first, second) = int(instance.labels[0]), wrong_labels(instance.labels, CLASSES)[0].tolist()
    for subset in [(), ((0, right),), ((3, first),), ((0, 9),), ((0, first), (0, second))]:
        with pytest.raises(CitrusError, match="wrong label"):
            refine_subsets(instance, [subset])
    with pytest.raises(CitrusError, match="teams"):
        refine_subsets(instance, [((0, first),)], teams=[1, 2])
    with pytest.raises(CitrusError, match="box"):
        replace(instance, boxes=instance.boxes[:1])
    with pytest.raises(CitrusError, match="iterations"):
        JointSettings(iterations=-1)
    with pytest.raises(CitrusError, match="sets"):
        RoundSettings(sets=0)
    assert refine_subsets(instance, []) == []


def searches_of(instance: Instance, size: int) -> tuple[list[list[int]], list[SubsetSearch]]:
    """A search on CROWN's planes for each group of `size` consecutive images."""
    spec = margin_rows(instance.labels, instance.graph.classes)
    bounds = crown(instance.graph, instance.images, instance.eps, spec, LinearSettings(upper=False, planes=True))
    assert bounds.lower_planes is not None
    groups = [list(range(k, k + size)) for k in range(0, len(instance.images), size)]
    parts = (bounds.lower_planes.a.flatten(2), bounds.lower_planes.b, wrong_labels(instance.labels, CLASSES))
    return groups, [
        SubsetSearch(Planes.of(*(part[group] for part in parts), instance.eps, ~(bounds.lower[group] > 0)))
        for group in groups
    ]


def test_rounds_raise_the_count_and_no_perturbation_goes_below_it() -> None:
    instance = small(count=24, eps=0.06)
    groups, searches = searches_of(instance, 4)
    before = [search.run().survivors for search in searches]
    outcomes = refine_groups(instance, groups, searches, RoundSettings(JointSettings(iterations=40), sets=1))
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
        for proof in outcome.proofs:
            assert {i for i, _ in proof.core} <= set(group)
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
