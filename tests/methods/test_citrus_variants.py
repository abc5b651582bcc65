"""Departures from the CITRUS paper that are off by default, each against a plain second version."""

import math
from dataclasses import replace

import pytest
import torch
from support.cross_input import TAU_RATIO, assert_same, box_loss, point_loss, spy_on
from support.steps import EPS, FEW_STEPS, SHAPE, BoxSpy, make_batch, make_network, random
from support.steps import one_thread as one_thread
from torch import Tensor

import citrus.methods.citrus as module
from citrus.bounds import LinearSettings, crown, margin_loss, margin_rows
from citrus.errors import CitrusError
from citrus.methods import Batch, Citrus, CitrusSI

PLAIN = make_batch(make_network()[1])

# --------------------------------------------------------------------------------------------- the worst of several


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(("partners", "worst_of"), [(1, 2), (1, 5), (2, 5), (3, 4)])
def test_the_worst_candidates_by_their_loss_at_a_point_are_kept(
    partners: int, worst_of: int, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, traced = make_network()
    batch = make_batch(traced, 6, clip)
    calls = spy_on("pgd", monkeypatch)
    method = Citrus(TAU_RATIO, group_size=6, partners=partners, worst_of=worst_of, attack=FEW_STEPS)
    method.check(6)
    shifts = method.draw_shifts(batch)
    assert shifts.shape == (1, worst_of)
    monkeypatch.setattr(Citrus, "draw_shifts", lambda self, batch: shifts)
    loss = method.loss(batch).loss
    ((_, delta),) = calls
    terms = []
    for i in range(6):
        candidates = [delta[(i + shift) % 6] for shift in shifts[0].tolist()]
        candidates.sort(key=lambda v: point_loss(network, batch, i, v).item(), reverse=True)
        terms += [box_loss(network, batch, i, v) for v in candidates[:partners]]
    assert_same(network, loss, torch.stack(terms).mean())


def test_worst_of_as_many_as_are_kept_is_no_choice() -> None:
    traced = make_network()[1]
    methods = [Citrus(TAU_RATIO, group_size=6, partners=3, worst_of=w, attack=FEW_STEPS) for w in (0, 3)]
    plain, chosen = (method.loss(make_batch(traced)).loss for method in methods)
    torch.testing.assert_close(plain, chosen, rtol=1e-12, atol=0)


def test_the_worst_of_all_points_is_the_largest_cross_input_loss() -> None:
    """With boxes without extent the loss is the mean over images of the largest term of the paper's sum."""
    network, traced = make_network()
    batch = make_batch(traced)
    delta = (2 * random(6, *SHAPE, seed=5) - 1) * EPS
    method = Citrus(0.0, group_size=3, partners=1, worst_of=2)
    lenders = method.lenders(batch, torch.tensor([[1, 2], [1, 2]]))
    largest = []
    for i in range(6):
        others = [j for j in range(i // 3 * 3, i // 3 * 3 + 3) if j != i]
        largest.append(torch.stack([point_loss(network, batch, i, delta[j]) for j in others]).max())
    assert_same(network, method.cross_loss(batch, delta, *lenders).loss, torch.stack(largest).mean())


# --------------------------------------------------------------------------------------------- the image's own, too


@pytest.mark.parametrize("own", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("partners", [0, 1])
def test_borrowed_perturbations_give_way_to_the_images_own(
    own: float, partners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, traced = make_network()
    calls = spy_on("pgd", monkeypatch)
    spy = BoxSpy(monkeypatch)
    batch = make_batch(traced, 6, False)
    method = Citrus(TAU_RATIO, group_size=6, partners=partners, own=own, attack=FEW_STEPS)
    method.check(6)
    loss = method.loss(batch).loss
    ((_, delta),) = calls
    count = partners or 5
    centres = (torch.cat(spy.lower) + torch.cat(spy.upper)) / 2
    used = centres.view(6, count, *SHAPE) - batch.images[:, None]
    lender = [[int((used[i, j] - delta).abs().amax((1, 2, 3)).argmin()) for j in range(count)] for i in range(6)]
    mine = sum(lender[i][j] == i for i in range(6) for j in range(count))
    assert (mine == 0) if own == 0 else (mine == 6 * count) if own == 1 else 0 < mine < 6 * count
    expected = [box_loss(network, batch, i, delta[j]) for i in range(6) for j in lender[i]]
    assert_same(network, loss, torch.stack(expected).mean())


@pytest.mark.parametrize(("method", "message"), [(Citrus(k=3, own=0.5), "own is for k = 2"), (Citrus(own=1.1), "own")])
def test_own_perturbations_that_cannot_be(method: Citrus, message: str) -> None:
    with pytest.raises(CitrusError, match=message):
        method.check(5)


# ------------------------------------------------------------------------------------------------------------ mixing


@pytest.mark.parametrize("kind", [Citrus, CitrusSI])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("max_boxes", [1 << 30, 5])
def test_the_second_loss_is_that_of_the_centres(
    kind: type[Citrus], clip: bool, max_boxes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, traced = make_network()
    calls = spy_on("pgd", monkeypatch)
    losses = {}
    for mix in (0.0, 0.25, 1.0):
        batch = replace(make_batch(traced, 6, clip), max_boxes=max_boxes)
        method = kind(TAU_RATIO, group_size=3, mix=mix, mix_with="adversarial", attack=FEW_STEPS)
        losses[mix] = method.loss(batch).loss
    delta = calls[0][1]
    points = torch.stack(
        [
            point_loss(network, batch, i, delta[j])
            for i in range(6)
            for j in range(i // 3 * 3, i // 3 * 3 + 3)
            if kind is CitrusSI or i != j
        ]
    )
    assert_same(network, losses[1.0], points.mean())
    assert_same(network, losses[0.25], 0.75 * losses[0.0] + 0.25 * points.mean())
    assert losses[1.0] < losses[0.25] < losses[0.0], "a point of a box never costs more than the box"


def test_the_second_loss_may_be_that_of_each_image_under_its_own_perturbation(monkeypatch: pytest.MonkeyPatch) -> None:
    network, traced = make_network()
    calls = spy_on("pgd", monkeypatch)
    batch = make_batch(traced, 6, False)
    methods = [Citrus(TAU_RATIO, group_size=3, mix=m, mix_with="own", attack=FEW_STEPS) for m in (0.0, 0.25, 1.0)]
    plain, mixed, own = (method.loss(make_batch(traced, 6, False)).loss for method in methods)
    points = torch.stack([point_loss(network, batch, i, calls[0][1][i]) for i in range(6)])
    assert_same(network, own, points.mean())
    assert_same(network, mixed, 0.75 * plain + 0.25 * points.mean())


def test_boxes_without_extent_are_their_centres_already() -> None:
    traced = make_network()[1]
    methods = [Citrus(0.0, group_size=3, mix=m, mix_with="adversarial", attack=FEW_STEPS) for m in (0.0, 0.6, 1.0)]
    first, *rest = (method.loss(make_batch(traced)).loss for method in methods)
    for loss in rest:
        torch.testing.assert_close(loss, first, rtol=1e-12, atol=0)


def test_a_mixed_in_clean_loss_is_the_batchs() -> None:
    network, traced = make_network()
    methods = [Citrus(TAU_RATIO, group_size=3, mix=m, attack=FEW_STEPS) for m in (0.0, 0.25, 1.0)]
    batch = make_batch(traced)
    plain, mixed, clean = (method.loss(make_batch(traced)).loss for method in methods)
    assert_same(network, mixed, 0.75 * plain + 0.25 * batch.clean_loss)
    assert_same(network, clean, batch.clean_loss)


# ------------------------------------------------------------------------------------------------------------ memory


def lent(method: Citrus, state: dict[str, Tensor], step: int, eps: float, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Which perturbation each of 6 images meets in a step, (6, partners).

    Images are 0 and the perturbation of image i in this step is the constant 100 * step + i + 1 radii, so a box's
    centre names its perturbation; 0 would be a slot that nothing was written to.
    """
    radius = eps - method.tau_ratio * eps
    codes = (100 * step + torch.arange(1.0, 7)).double().view(-1, 1, 1, 1).expand(6, *SHAPE) * radius
    centres: list[Tensor] = []

    def boxes(batch: Batch, centre: Tensor, tau: float, labels: Tensor) -> tuple[Tensor, None]:
        centres.append(centre / radius)
        return torch.zeros(len(centre)), None

    monkeypatch.setattr(module, "pgd", lambda *arguments, **options: codes)
    monkeypatch.setattr(module, "box_losses", boxes)
    generator = torch.Generator().manual_seed(step)
    method.loss(replace(PLAIN, images=torch.zeros_like(PLAIN.images), eps=eps, generator=generator, state=state))
    (centre,) = centres
    assert (centre == centre[:, :1, :1, :1]).all()
    return centre[:, 0, 0, 0].view(6, -1).round(decimals=3).long()


@pytest.mark.parametrize(("slots", "partners"), [(6, 1), (10, 1), (10, 2), (16, 2)])
def test_partners_come_from_a_ring_of_the_latest_perturbations(
    slots: int, partners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Citrus(TAU_RATIO, group_size=3, partners=partners, memory=slots)
    method.check(6)
    state = method.initial_state(PLAIN.graph)
    written: list[int] = []
    recalled = fallen_back = 0
    for step in range(1, 9):
        eps = EPS * min(step, 5) / 5  # the radius grows; what is remembered grows with it
        names = lent(method, state, step, eps, monkeypatch)
        for i, row in enumerate(names.tolist()):
            assert len(set(row)) == partners
            for name in row:
                if name in written[-slots:]:
                    recalled += 1
                else:
                    fallen_back += 1
                    assert name // 100 == step, "neither an empty slot nor one that was overwritten"
                    assert len(written) < slots, "a full memory answers for every image"
                    partner = name % 100 - 1
                    assert partner != i
                    assert partner // 3 == i // 3
        written += [100 * step + i + 1 for i in range(6)]
        kept = state["memory"][:, 0, 0, 0].round(decimals=3).long().tolist()
        assert sorted(kept) == sorted([0] * (slots - len(written)) + written[-slots:])
        assert state["written"] == len(written)
    assert recalled > 0
    assert fallen_back >= 6 * partners, "all of the first step"


def test_slots_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Citrus(TAU_RATIO, group_size=3, partners=1, memory=8)
    state = method.initial_state(PLAIN.graph)
    state["memory"] += torch.arange(-8.0, 0).view(-1, 1, 1, 1)
    state["written"] += 8
    full = {name: value.clone() for name, value in state.items()}
    counts = torch.zeros(8)
    for step in range(300):
        names = lent(method, {name: value.clone() for name, value in full.items()}, step, EPS, monkeypatch)
        counts += torch.bincount(names.flatten() + 8, minlength=8)
    # slots of one step move together, so the 300 turns are the independent draws
    assert (counts / 1800 - 1 / 8).abs().max() < 5 * (1 / 8 * 7 / 8 / 300) ** 0.5


def test_a_memory_of_perturbations_without_extent_holds_zeros() -> None:
    """tau = eps leaves the attack no room: 0 is a share of 0, not NaN."""
    method = Citrus(1.0, group_size=3, partners=1, memory=6, attack=FEW_STEPS)
    batch = make_batch(make_network()[1])
    state = method.initial_state(batch.graph)
    losses = [method.loss(replace(batch, state=state)).loss for _ in range(2)]
    assert torch.equal(*losses)
    assert losses[0].isfinite()
    assert not state["memory"].any()


# ----------------------------------------------------------------------------------------------------- growing tau


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize(("ramp", "share"), [(0.0, 0.2), (0.5, 0.6), (1.0, 1.0)])
def test_tau_grows_with_the_ramp(ramp: float, share: float, as_tensor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = make_network()[1]
    batch = replace(make_batch(traced), ramp=torch.tensor(ramp, dtype=torch.float64) if as_tensor else ramp)
    calls, spy = spy_on("pgd", monkeypatch), BoxSpy(monkeypatch)
    loss = Citrus(0.5, group_size=3, tau_start=0.2, attack=FEW_STEPS).loss(batch).loss
    ((arguments, _),) = calls
    tau = share * 0.5 * EPS
    assert float(arguments[3]) == pytest.approx(EPS - tau)  # type: ignore[arg-type]
    torch.testing.assert_close(spy.upper[0] - spy.lower[0], torch.full_like(spy.upper[0], 2 * tau))
    constant = Citrus(0.5 * share, group_size=3, attack=FEW_STEPS).loss(make_batch(traced)).loss
    torch.testing.assert_close(loss, constant, rtol=1e-9, atol=0)


# -------------------------------------------------------------------------------------------------- linear bounds, too


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(("share", "factor"), [(0.3, 1.0), (1.0, 1.0), (0.5, 1.4)])
def test_the_linear_share_is_the_loss_at_crown_bounds_of_whole_boxes(share: float, factor: float, clip: bool) -> None:
    network, traced = make_network()
    plain = Citrus(TAU_RATIO, group_size=3, attack=FEW_STEPS)
    batch = make_batch(traced, 6, clip)
    lower, upper = batch.clipped(batch.images - factor * EPS), batch.clipped(batch.images + factor * EPS)
    rows = margin_rows(batch.labels, batch.graph.classes, lower.dtype)
    how = LinearSettings(intermediate="interval")
    proved = crown(batch.graph, (lower + upper) / 2, (upper - lower) / 2, rows, how).lower
    expected = (1 - share) * plain.loss(make_batch(traced, 6, clip)).loss + share * margin_loss(proved).mean()
    assert_same(network, replace(plain, linear=share, linear_radius=factor).loss(batch).loss, expected)


# ---------------------------------------------------------------------------------------------------------- bad input

BAD: list[tuple[Citrus, int, str]] = [
    (Citrus(group_size=5, k=6), 10, "k must lie between 2 and the group's 5 images, got 6"),
    (CitrusSI(group_size=5, k=6), 10, "k must lie between 2 and the group's 5 images, got 6"),
    (Citrus(group_size=0, k=11), 10, "the group's 10 images, got 11"),
    *((Citrus(k=k), 10, f"k must lie between 2 and the group's 5 images, got {k}") for k in (1, 0, -1)),
    *((Citrus(k=4, partners=b), 10, f"group of 5 can have 0 .* to 2 partners, got {b}") for b in (3, -1)),
    (Citrus(group_size=0, k=4), 30, "k 4 in groups of 30 makes 3654 boxes per image, more than 256: set partners"),
    (Citrus(partners=0, worst_of=3), 10, "worst_of must lie .* partners be at least 1, got worst_of 3 and partners 0"),
    (Citrus(partners=2, worst_of=1), 10, "worst_of must lie between partners and 4, .* got worst_of 1 and partners 2"),
    (Citrus(partners=1, worst_of=5), 10, "worst_of must lie between partners and 4, .* got worst_of 5"),
    (Citrus(partners=1, worst_of=4, k=3), 10, "worst_of must lie between partners and 3"),
    (Citrus(partners=1, worst_of=-1), 10, "got worst_of -1"),
    (Citrus(partners=0, memory=50), 10, "A memory needs partners >= 1 .* got partners 0 and memory 50"),
    (Citrus(partners=1, memory=9), 10, "room for the batch's 10 perturbations, got partners 1 and memory 9"),
    (Citrus(partners=1, memory=-1), 10, "memory -1"),
    *((Citrus(mix=value), 10, f"mix must lie in .*got {value}") for value in (-0.1, 1.1, math.nan)),
    *((Citrus(tau_start=value), 10, f"tau_start must lie in .*got {value}") for value in (-0.1, 1.1, math.nan)),
    *((Citrus(linear=value), 10, f"linear must lie in .*got {value}") for value in (-0.1, 1.1, math.nan)),
    *((Citrus(linear_radius=v), 10, f"linear_radius must be .*got {v}") for v in (0.0, -1.0, math.inf, math.nan)),
]


@pytest.mark.parametrize(("method", "batch_size", "says"), BAD)
def test_variants_that_do_not_fit_are_refused_in_one_sentence(method: Citrus, batch_size: int, says: str) -> None:
    with pytest.raises(CitrusError, match=says) as caught:
        method.check(batch_size)
    assert str(caught.value).endswith(".")
    assert ". " not in str(caught.value)


GOOD = [
    (Citrus(k=5), 10),
    (Citrus(k=5, partners=1), 10),
    (Citrus(group_size=0, k=3), 23),
    (Citrus(group_size=0, k=30), 30),
    (Citrus(group_size=0), 1000),
    (Citrus(partners=4, worst_of=4), 10),
    (Citrus(partners=1, worst_of=3, k=3, memory=10, mix=1.0, mix_with="adversarial", tau_start=0.0), 10),
]


@pytest.mark.parametrize(("method", "batch_size"), GOOD)
def test_variants_at_the_edge_are_accepted(method: Citrus, batch_size: int) -> None:
    method.check(batch_size)
