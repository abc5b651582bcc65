"""CITRUS for k-common perturbations, k > 2, against plain loops over sets of images.

With k = 2 and every other variant off it must stay, bit for bit, what it was: `paper_loss` is a frozen copy of that.
"""

import math
from dataclasses import replace
from itertools import combinations, permutations

import pytest
import torch
import torch.nn.functional as F
from support.cross_input import RADIUS, TAU_RATIO, assert_same, box_loss, spy_on_pgd
from support.steps import FEW_STEPS, SHAPE, gradients, make_batch, make_network, random
from support.steps import one_thread as one_thread
from torch import Tensor, nn

from citrus.attacks import Ascent, pgd
from citrus.methods import Batch, Citrus, CitrusSI, box_losses
from citrus.methods.citrus import every_subset, subsets_of, windows

CPU = torch.device("cpu")


# ------------------------------------------------------------------------------------------------ the paper's method


def paper_loss(method: Citrus, batch: Batch) -> Tensor:
    """The method as it was before it could do anything else. Not to be changed with it."""
    size = method.group_size or len(batch.images)
    groups = len(batch.images) // size
    tau = method.tau_ratio * batch.eps
    arguments = (batch.frozen(), batch.images, batch.labels, batch.eps - tau, method.attack)
    delta = pgd(*arguments, clip=batch.clip, generator=batch.generator)
    if method.partners:
        noise = torch.rand(groups, size - 1, generator=batch.generator)
        shifts = noise.argsort(1)[:, : method.partners] + 1
    else:
        shifts = torch.arange(1, size).expand(groups, -1)
    if method.same_input:
        shifts = torch.cat([shifts, torch.zeros_like(shifts[:, :1])], 1)
    place, first = torch.arange(size), size * torch.arange(groups)
    partner = (first[:, None, None] + (place[None, :, None] + shifts[:, None, :]) % size).flatten(0, 1)
    count = partner.shape[1]
    centre = (batch.images[:, None] + delta[partner]).flatten(0, 1)
    losses, _ = box_losses(batch, centre, tau, batch.labels.repeat_interleave(count))
    losses = losses.view(-1, count)
    if method.same_input:
        return (losses[:, :-1].mean() * (size - 1) + losses[:, -1].mean()) / size
    return losses.mean()


@pytest.mark.parametrize("kind", [Citrus, CitrusSI])
@pytest.mark.parametrize(("size", "partners"), [(3, 0), (3, 1), (3, 2), (2, 0), (0, 0), (0, 1), (0, 5)])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau_ratio", [0.0, 0.4, 1.0])
def test_with_all_variants_off_it_is_the_papers_method_bit_for_bit(
    kind: type[Citrus], size: int, partners: int, clip: bool, dtype: torch.dtype, tau_ratio: float
) -> None:
    network, traced = make_network(dtype=dtype)
    method = kind(tau_ratio=tau_ratio, group_size=size, partners=partners, attack=FEW_STEPS)
    now, then = make_batch(traced, 6, clip), make_batch(traced, 6, clip)
    loss, expected = method.loss(now).loss, paper_loss(method, then)
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, gradients(network, loss), gradients(network, expected)))
    assert torch.equal(now.generator.get_state(), then.generator.get_state()), "and no number more is drawn"  # type: ignore[union-attr]


def test_all_variants_are_off_by_default() -> None:
    method = Citrus()
    assert (method.k, method.own, method.linear) == (2, 0, 0)
    assert method.initial_state(make_batch(make_network()[1]).graph) == {}


# --------------------------------------------------------------------------------------- perturbations common to a set


def plain_common_attack(
    network: nn.Sequential, images: Tensor, labels: Tensor, start: Tensor, radius: float, settings: Ascent, clip: bool
) -> Tensor:
    """One set: sign steps on the sum of its cross-entropies; the iterate that fools most, then costs most, is kept."""
    delta, best, best_value = start.clamp(-radius, radius), start, (-1, -math.inf)
    for step in range(settings.steps + 1):
        delta = delta.detach().requires_grad_()
        total, wrong = torch.zeros(()), 0
        for x, y in zip(images, labels, strict=True):
            point = (x + delta).clamp(0, 1) if clip else x + delta
            logits = network(point[None])
            total = total + F.cross_entropy(logits, y[None])
            wrong += int(logits.argmax()) != int(y)
        if (wrong, total.item()) > best_value:
            best, best_value = delta.detach(), (wrong, total.item())
        (gradient,) = torch.autograd.grad(total, delta)
        delta = (delta + settings.step_at(step) * radius * gradient.sign()).clamp(-radius, radius)
    return best


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_common_attack_climbs_the_summed_loss_of_each_set(count: int, clip: bool) -> None:
    network, traced = make_network(batch_norm=False)
    batch = make_batch(traced, 6, clip)
    batch = replace(batch, labels=batch.graph(batch.images).argmax(1))  # nothing is fooled to begin with
    settings = Ascent(steps=4, step_size=0.4)
    sets = subsets_of(6, count, CPU)
    noise = torch.rand(len(sets), *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    found = pgd(
        *(batch.frozen(), batch.images, batch.labels, RADIUS, settings),
        sets=sets,
        clip=clip,
        generator=torch.Generator().manual_seed(7),
    )
    for members, delta, start in zip(sets, found, (2 * noise - 1) * RADIUS, strict=True):
        x, y = batch.images[members], batch.labels[members]
        expected = plain_common_attack(network, x, y, start, RADIUS, settings, clip)
        torch.testing.assert_close(delta, expected, rtol=0, atol=1e-12)


def test_fooling_all_of_a_set_counts_more_than_their_summed_loss() -> None:
    """The first image pulls ten times as hard, but the second is fooled only by small perturbations."""

    def scores(x: Tensor) -> Tensor:
        which, value = x[:, 0, 0, 0] > 50, x[:, 0, 0, 1]
        return torch.stack([torch.zeros_like(value), torch.where(which, 0.5 - 2 * value, 20 + 10 * value)], 1)

    images = torch.tensor([[[[0.0, 0.0]]], [[[100.0, 0.0]]]])
    labels, sets = torch.tensor([0, 0]), torch.tensor([[0, 1]]).expand(30, -1)
    settings = Ascent(steps=6, step_size=0.2, decay_at=())
    noise = 2 * torch.rand(30, 1, 1, 2, generator=torch.Generator().manual_seed(7)) - 1
    generator = torch.Generator().manual_seed(7)
    found = pgd(scores, images, labels, 1.0, settings, sets=sets, generator=generator)[:, 0, 0, 1]
    started = noise[:, 0, 0, 1]
    assert (found[started < 0.25] < 0.25).all()
    assert (found[started < 0.25] > 0.05 - 1e-6).all(), "and of those the largest sum is kept"
    assert (found[started >= 0.25] == 1).all()


def test_a_set_of_one_image_is_attacked_as_that_image_is() -> None:
    batch = make_batch(make_network()[1], 6)
    attacks = []
    for sets in (None, torch.arange(6)[:, None]):
        arguments = (batch.frozen(), batch.images, batch.labels, RADIUS, Ascent(steps=5))
        attacks.append(pgd(*arguments, sets=sets, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(*attacks)


# ----------------------------------------------------------------------------------------------------------- k > 2


@pytest.mark.parametrize(("size", "count"), [(1, 1), (3, 1), (3, 3), (5, 2), (6, 4), (12, 3), (40, 39)])
def test_subsets_are_all_there_once(size: int, count: int) -> None:
    rows = [tuple(sorted(row)) for row in subsets_of(size, count, CPU).tolist()]
    assert sorted(rows) == list(combinations(range(size), count))


@pytest.mark.parametrize(("size", "groups", "count"), [(3, 2, 2), (5, 1, 2), (5, 3, 3), (4, 2, 1)])
def test_every_image_is_told_the_sets_without_and_with_it(size: int, groups: int, count: int) -> None:
    sets, without, having = every_subset(size, groups, count, CPU)
    members = [frozenset(row) for row in sets.tolist()]
    assert len(set(members)) == len(members) == groups * math.comb(size, count)
    for i in range(size * groups):
        group = range(i // size * size, i // size * size + size)
        expected = {frozenset(s) for s in combinations(group, count)}
        assert {members[s] for s in without[i].tolist()} == {s for s in expected if i not in s}
        assert {members[s] for s in having[i].tolist()} == {s for s in expected if i in s}


def sum_over_sets(
    network: nn.Sequential, batch: Batch, found: dict[frozenset[int], Tensor], size: int, same_input: bool
) -> tuple[Tensor, int]:
    """Over images i and sets J of its group, without i (or, in the ablation, all): L_IBP(x_i + v_J, y_i, tau)."""
    total, terms = torch.zeros((), dtype=torch.float64), 0
    for i in range(len(batch.images)):
        for members, delta in found.items():
            if i // size == min(members) // size and (same_input or i not in members):
                total, terms = total + box_loss(network, batch, i, delta), terms + 1
    return total, terms


@pytest.mark.parametrize("kind", [Citrus, CitrusSI])
@pytest.mark.parametrize(("size", "groups", "k"), [(3, 2, 3), (4, 1, 3), (5, 1, 3), (5, 1, 4), (5, 1, 5)])
@pytest.mark.parametrize("clip", [False, True])
def test_the_exact_sum_for_k_runs_over_all_sets_of_the_others(
    kind: type[Citrus], size: int, groups: int, k: int, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, traced = make_network()
    batch = make_batch(traced, size * groups, clip)
    calls = spy_on_pgd(monkeypatch)
    method = kind(tau_ratio=TAU_RATIO, group_size=size, k=k, attack=FEW_STEPS)
    method.check(len(batch.images))
    loss = method.loss(batch).loss
    ((radius, sets, delta),) = calls
    assert isinstance(sets, Tensor)
    assert radius == pytest.approx(RADIUS)
    found = {frozenset(row): v for row, v in zip(sets.tolist(), delta, strict=True)}
    assert len(found) == len(sets) == groups * math.comb(size, k - 1), "each set is attacked once"
    total, terms = sum_over_sets(network, batch, found, size, kind is CitrusSI)
    assert terms == size * groups * math.comb(size - (kind is Citrus), k - 1)
    assert_same(network, loss, total / terms)


@pytest.mark.parametrize("kind", [Citrus, CitrusSI])
@pytest.mark.parametrize(("size", "k", "partners"), [(4, 3, 1), (4, 3, 2), (4, 4, 1), (3, 3, 1)])
def test_the_mean_over_all_orders_and_shifts_is_the_exact_sum(
    kind: type[Citrus], size: int, k: int, partners: int
) -> None:
    network, traced = make_network(batch_norm=False)
    batch = make_batch(traced, 2 * size)
    subsets = [frozenset(g * size + m for m in s) for g in (0, 1) for s in combinations(range(size), k - 1)]
    noise = (2 * random(len(subsets), *SHAPE, seed=5) - 1) * RADIUS
    found = dict(zip(subsets, noise, strict=True))
    method = kind(tau_ratio=TAU_RATIO, group_size=size, k=k, partners=partners)
    draws = []
    for order in permutations(range(size)):
        both = torch.tensor([order, order])
        delta = torch.stack([found[frozenset(row)] for row in windows(both, k - 1).tolist()])
        for shifts in combinations(range(1, size - k + 2), partners):
            others, own = method.lenders(batch, torch.tensor([shifts, shifts]), both.argsort(1))
            draws.append(method.cross_loss(batch, delta, others, own).loss)
    total, terms = sum_over_sets(network, batch, found, size, kind is CitrusSI)
    assert_same(network, torch.stack(draws).mean(), total / terms)


@pytest.mark.parametrize(("size", "groups", "k", "partners"), [(5, 2, 3, 1), (5, 2, 3, 3), (6, 1, 4, 2), (4, 3, 4, 1)])
def test_drawn_sets_are_of_the_own_group_and_leave_the_image_out(size: int, groups: int, k: int, partners: int) -> None:
    method = Citrus(group_size=size, k=k, partners=partners)
    method.check(size * groups)
    batch = make_batch(make_network()[1], size * groups)
    for seed in range(10):
        drawn = replace(batch, generator=torch.Generator().manual_seed(seed))
        sets, others, own = (t.tolist() for t in method.draw_sets(drawn))
        for i, (lenders, (mine,)) in enumerate(zip(others, own, strict=True)):
            assert len(set(lenders)) == partners
            assert i in sets[mine]
            for row in [sets[s] for s in lenders]:
                assert len(set(row)) == k - 1
                assert i not in row
                assert {j // size for j in row} == {i // size}


def test_every_set_of_the_others_is_equally_likely() -> None:
    method = Citrus(group_size=4, k=3, partners=1)
    batch = make_batch(make_network(batch_norm=False)[1], 4 * 600)
    sets, others, _ = method.draw_sets(batch)
    met = (sets[others[:, 0]] % 4).sort(1).values.view(600, 4, 2)
    for member in range(4):
        rows, counts = met[:, member].unique(dim=0, return_counts=True)
        expected = list(combinations([m for m in range(4) if m != member], 2))
        assert [tuple(row) for row in rows.tolist()] == expected
        assert (counts / 600 - 1 / 3).abs().max() < 5 * (1 / 3 * 2 / 3 / 600) ** 0.5
