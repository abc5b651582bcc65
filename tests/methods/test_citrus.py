"""CITRUS is Algorithm 1 of its paper: checked against the double loop in algorithm1.py, value and gradient."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from support.algorithm1 import algorithm1, ibp_loss, norms_of
from support.steps import CLASSES, EPS, FEW_STEPS, SHAPE, STD, gradients, make_batch, make_network, random
from support.steps import one_thread as one_thread
from torch import Tensor, nn

import citrus.methods.base as base
import citrus.methods.citrus as module
from citrus.attacks import Ascent
from citrus.methods import Batch, Citrus, CitrusSI
from citrus.methods.citrus import partner_index
from citrus.training.step import regularizer

TAU_RATIO = 0.4


def slow_sum(network: nn.Sequential, batch: Batch, delta: Tensor, size: int) -> tuple[Tensor, int]:
    """Algorithm 1 on each group, and how many terms the sum has. BatchNorm sees the whole batch."""
    norms = norms_of(network, batch.images)
    terms = len(batch.images) * (size - 1)
    groups = zip(batch.images.split(size), batch.labels.split(size), delta.split(size), strict=True)
    sums = [algorithm1(network, x, y, v, TAU_RATIO * EPS, batch.clip, norms) for x, y, v in groups]
    return torch.stack(sums).sum(), terms


def own_boxes(network: nn.Sequential, batch: Batch, delta: Tensor) -> Tensor:
    """The terms j = i that Algorithm 1 leaves out and the same-input ablation adds."""
    norms = norms_of(network, batch.images)
    rows = zip(batch.images, batch.labels, delta, strict=True)
    losses = [ibp_loss(network, x + v, int(y), TAU_RATIO * EPS, batch.clip, norms) for x, y, v in rows]
    return torch.stack(losses).sum()


def record_pgd(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, float]]:
    """The perturbations that the method's attack finds, and the radius it was given."""
    found: list[tuple[Tensor, float]] = []
    attack = base.pgd

    def spy(model: object, images: Tensor, labels: Tensor, radius: float, *rest: Ascent, **options: object) -> Tensor:
        found.append((attack(model, images, labels, radius, *rest, **options), radius))  # type: ignore[arg-type]
        return found[-1][0]

    monkeypatch.setattr(base, "pgd", spy)
    return found


def assert_same_gradients(network: nn.Module, first: Tensor, second: Tensor, tolerance: float = 1e-9) -> None:
    a, b = gradients(network, first), gradients(network, second)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)
    assert sum(x.abs().sum() for x in a) > 0


# ------------------------------------------------------------------------------------------------ Algorithm 1 itself


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(("size", "groups"), [(2, 1), (2, 3), (3, 2), (5, 1), (5, 2)])
def test_the_loss_is_the_mean_of_the_double_loop(
    size: int, groups: int, batch_norm: bool, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, traced = make_network(batch_norm)
    batch = make_batch(traced, size * groups, clip)
    found = record_pgd(monkeypatch)
    loss = Citrus(tau_ratio=TAU_RATIO, group_size=size, attack=FEW_STEPS).loss(batch).loss
    ((delta, radius),) = found
    assert radius == pytest.approx(EPS - TAU_RATIO * EPS)
    assert delta.abs().max() <= radius + 1e-12
    total, terms = slow_sum(network, batch, delta, size)
    torch.testing.assert_close(loss, total / terms, rtol=1e-10, atol=1e-10)
    assert_same_gradients(network, loss, total / terms)


def test_group_size_0_means_the_whole_batch() -> None:
    traced = make_network(True)[1]
    losses = []
    for size in (0, 6):
        method = Citrus(tau_ratio=TAU_RATIO, group_size=size, attack=FEW_STEPS)
        losses.append(method.loss(make_batch(traced, 6)).loss)
    assert torch.equal(*losses)


@pytest.mark.parametrize("partners", [0, 1, 2])
@pytest.mark.parametrize("clip", [False, True])
def test_same_input_boxes_enter_with_weight_1_over_m(
    partners: int, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all partners: the double loop over all j. With b of them: unbiased, the own box weighs 1/m all the same."""
    network, traced = make_network(True)
    batch = make_batch(traced, 6, clip)
    found = record_pgd(monkeypatch)
    method = CitrusSI(tau_ratio=TAU_RATIO, group_size=3, partners=partners, attack=FEW_STEPS)
    shifts = method.draw_shifts(batch)
    monkeypatch.setattr(Citrus, "draw_shifts", lambda self, batch: shifts)
    loss = method.loss(batch).loss
    delta = found[0][0]
    plain = Citrus(tau_ratio=TAU_RATIO, group_size=3, partners=partners)
    cross = plain.cross_loss(batch, delta, *plain.lenders(batch, shifts)).loss
    own = own_boxes(network, batch, delta) / 6
    torch.testing.assert_close(loss, cross * 2 / 3 + own / 3, rtol=1e-10, atol=1e-10)
    if not partners:
        total, terms = slow_sum(network, batch, delta, 3)
        everything = (total + own_boxes(network, batch, delta)) / (terms + 6)
        torch.testing.assert_close(loss, everything, rtol=1e-10, atol=1e-10)
        assert_same_gradients(network, loss, everything)


# --------------------------------------------------------------------------------------------------- drawn partners


@pytest.mark.parametrize("kind", [Citrus, CitrusSI])
@pytest.mark.parametrize(("size", "partners"), [(2, 1), (3, 1), (5, 1), (3, 2), (4, 2), (5, 2), (5, 3)])
def test_the_mean_over_all_draws_is_the_exact_sum(kind: type[Citrus], size: int, partners: int) -> None:
    network, traced = make_network(False)
    batch = make_batch(traced, 2 * size)
    delta = (2 * random(2 * size, *SHAPE, seed=5) - 1) * (1 - TAU_RATIO) * EPS
    method = kind(tau_ratio=TAU_RATIO, group_size=size, partners=partners)
    draws = [
        method.cross_loss(batch, delta, *method.lenders(batch, torch.tensor([shifts, shifts]))).loss
        for shifts in combinations(range(1, size), partners)
    ]
    mean = torch.stack(draws).mean()
    total, terms = slow_sum(network, batch, delta, size)
    if kind is CitrusSI:
        total, terms = total + own_boxes(network, batch, delta), terms + 2 * size
    torch.testing.assert_close(mean, total / terms, rtol=1e-10, atol=1e-10)
    assert_same_gradients(network, mean, total / terms)


@pytest.mark.parametrize(("size", "partners"), [(3, 1), (4, 2), (5, 1)])
def test_every_draw_is_equally_likely(size: int, partners: int) -> None:
    """So the mean over all draws is the expectation of what training sees."""
    batch = make_batch(make_network(False)[1], 600 * size)
    shifts = Citrus(group_size=size, partners=partners).draw_shifts(batch)
    assert shifts.shape == (600, partners)
    sets, counts = shifts.sort(1).values.unique(dim=0, return_counts=True)
    choices = list(combinations(range(1, size), partners))
    assert [tuple(row) for row in sets.tolist()] == choices
    share = 1 / len(choices)
    assert (counts / 600 - share).abs().max() < 5 * (share * (1 - share) / 600) ** 0.5


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_partner_index_names_other_members_of_the_same_group(size: int) -> None:
    shifts = torch.arange(1, size).expand(3, -1)
    partner = partner_index(size, shifts)
    for i, row in enumerate(partner.tolist()):
        group = range(i // size * size, i // size * size + size)
        assert sorted(row) == [j for j in group if j != i]


def lenders(method: Citrus, count: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Who lent each image its perturbations, (image, box), read off the boxes that are bounded in a whole step.

    Perturbation j is the constant j + 1 and the images are 0, so a box's centre names the lender.
    """
    codes = torch.arange(1.0, count + 1).view(-1, 1, 1, 1).expand(count, *SHAPE)
    centres: list[Tensor] = []

    def spy(batch: Batch, centre: Tensor, radius: float, labels: Tensor) -> tuple[Tensor, None]:
        assert torch.equal(labels, batch.labels.repeat_interleave(len(labels) // count))
        centres.append(centre)
        return torch.zeros(len(centre)), None

    monkeypatch.setattr(base, "pgd", lambda *args, **options: codes)
    monkeypatch.setattr(module, "box_losses", spy)
    graph = make_batch(TRACED, 1).graph
    labels = torch.arange(count) % CLASSES
    generator = torch.Generator().manual_seed(seed)
    method.loss(Batch(torch.zeros(count, *SHAPE), labels, torch.zeros(()), graph, EPS, False, generator))
    (centre,) = centres
    return centre[:, 0, 0, 0].view(count, -1).long() - 1


TRACED = make_network(False)[1]
LENDING = [(size, groups, b) for size in (2, 3, 5, 8) for groups in (1, 4) for b in (0, 1, 2, 7) if b < size]


@pytest.mark.parametrize("kind", [Citrus, CitrusSI])
@pytest.mark.parametrize(("size", "groups", "partners"), LENDING)
def test_no_image_meets_its_own_perturbation_but_in_citrus_si(
    kind: type[Citrus], size: int, groups: int, partners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = kind(group_size=size, partners=partners)
    method.check(size * groups)
    own_count = 1 if kind is CitrusSI else 0
    for seed in range(12):
        partner = lenders(method, size * groups, seed, monkeypatch)
        assert partner.shape == (size * groups, (partners or size - 1) + own_count)
        for i, row in enumerate(partner.tolist()):
            assert row.count(i) == own_count
            assert len(set(row)) == len(row), "partners of one image are distinct"
            assert {j // size for j in row} == {i // size}, "perturbations come from the image's own group"


def test_different_seeds_draw_different_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Citrus(group_size=5, partners=1)
    drawn = {tuple(lenders(method, 20, seed, monkeypatch).flatten().tolist()) for seed in range(20)}
    assert len(drawn) > 10


# -------------------------------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize("kind", [Citrus, CitrusSI])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("max_boxes", [7, 17])
def test_chunks_change_neither_loss_nor_gradient(kind: type[Citrus], clip: bool, max_boxes: int) -> None:
    network, traced = make_network(True)
    method = kind(tau_ratio=TAU_RATIO, group_size=3, attack=FEW_STEPS)

    def parts(limit: int) -> tuple[Tensor, Tensor]:
        batch = make_batch(traced, 6, clip)
        result = method.loss(replace(batch, max_boxes=limit))
        assert result.boxes is not None
        return result.loss, regularizer(result.boxes, torch.tensor(STD))

    whole, pieces = parts(1 << 30), parts(max_boxes)
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        assert_same_gradients(network, a, b, tolerance=1e-6)


def test_chunks_are_never_larger_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    interval: Callable[..., object] = base.training_interval
    monkeypatch.setattr(base, "training_interval", lambda g, c, *r: (sizes.append(len(c)), interval(g, c, *r))[1])
    batch = replace(make_batch(make_network(True)[1], 6), max_boxes=5)
    Citrus(tau_ratio=TAU_RATIO, group_size=3, attack=FEW_STEPS).loss(batch)
    assert sizes == [5, 5, 2]
