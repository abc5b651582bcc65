"""Departures from the CITRUS paper that are off by default, each against a plain second version."""

import math
from dataclasses import replace

import pytest
import torch
from support.cross_input import TAU_RATIO, assert_same, box_loss, spy_on_pgd
from support.steps import EPS, FEW_STEPS, SHAPE, BoxSpy, make_batch, make_network
from support.steps import one_thread as one_thread

from citrus.bounds import LinearSettings, crown, margin_loss, margin_rows
from citrus.errors import CitrusError
from citrus.methods import Citrus, CitrusSI

# --------------------------------------------------------------------------------------------- the image's own, too


@pytest.mark.parametrize("own", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("partners", [0, 1])
def test_borrowed_perturbations_give_way_to_the_images_own(
    own: float, partners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, traced = make_network()
    calls = spy_on_pgd(monkeypatch)
    spy = BoxSpy(monkeypatch)
    batch = make_batch(traced, 6, False)
    method = Citrus(TAU_RATIO, group_size=6, partners=partners, own=own, attack=FEW_STEPS)
    method.check(6)
    loss = method.loss(batch).loss
    ((_, _, delta),) = calls
    count = partners or 5
    centres = (torch.cat(spy.lower) + torch.cat(spy.upper)) / 2
    used = centres.view(6, count, *SHAPE) - batch.images[:, None]
    lender = [[int((used[i, j] - delta).abs().amax((1, 2, 3)).argmin()) for j in range(count)] for i in range(6)]
    mine = sum(lender[i][j] == i for i in range(6) for j in range(count))
    assert (mine == 0) if own == 0 else (mine == 6 * count) if own == 1 else 0 < mine < 6 * count
    expected = [box_loss(network, batch, i, delta[j]) for i in range(6) for j in lender[i]]
    assert_same(network, loss, torch.stack(expected).mean())


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
    *((Citrus(own=value), 10, f"own must lie in .*got {value}") for value in (-0.1, 1.1, math.nan)),
    (Citrus(k=3, own=0.5), 10, "own is for k = 2"),
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
    (Citrus(partners=4), 10),
    (Citrus(own=1.0, linear=1.0, tau_ratio=0.0), 10),
]


@pytest.mark.parametrize(("method", "batch_size"), GOOD)
def test_variants_at_the_edge_are_accepted(method: Citrus, batch_size: int) -> None:
    method.check(batch_size)
