"""IBP and SABR against formulas written a second time: plain loops in NumPy, and equation 2 of the CITRUS paper."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.algorithm1 import ibp_loss, norms_of
from support.steps import CLASSES, EPS, FEW_STEPS, SHAPE, BoxSpy, gradients, make_batch, make_network, random
from support.steps import one_thread as one_thread
from torch import nn

import citrus.methods.base as module
from citrus.methods import IBP, SABR
from citrus.networks import Trace, trace


def numpy_loss(linear: list[nn.Linear], lower: np.ndarray, upper: np.ndarray, label: int, shrink: float) -> float:
    """The interval loss of one box through linear layers with ReLUs between them, neuron by neuron."""
    layers = [(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in linear]
    for weight, bias in layers[:-1]:
        low, high = [], []
        for row, b in zip(weight, bias, strict=True):
            least = b + sum(w * (lower[k] if w > 0 else upper[k]) for k, w in enumerate(row))
            most = b + sum(w * (upper[k] if w > 0 else lower[k]) for k, w in enumerate(row))
            low.append(max(least, 0.0))
            high.append(shrink * most if least < 0 < most else max(most, 0.0))
        lower, upper = np.array(low), np.array(high)
    weight, bias = layers[-1]
    total = 1.0
    for i in range(len(bias)):
        if i != label:
            row = weight[i] - weight[label]
            worst = sum(w * (upper[k] if w > 0 else lower[k]) for k, w in enumerate(row))
            total += math.exp(worst + bias[i] - bias[label])
    return math.log(total)


def make_mlp() -> tuple[list[nn.Linear], Trace]:
    linear = [nn.Linear(50, 9), nn.Linear(9, 7), nn.Linear(7, CLASSES)]
    traced = trace(nn.Sequential(nn.Flatten(), linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2]), SHAPE)
    for i, layer in enumerate(linear):
        layer.double()
        with torch.no_grad():
            layer.weight.copy_(random(*layer.weight.shape, seed=20 + i) * 2 - 1)
    return linear, traced


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    "method", [IBP(), SABR(tau_ratio=0.3, attack=FEW_STEPS), SABR(tau_ratio=0.3, shrink=0.8, attack=FEW_STEPS)]
)
def test_ibp_and_sabr_with_shrinking_by_hand(method: IBP | SABR, clip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    linear, traced = make_mlp()
    batch = make_batch(traced, clip=clip)
    spy = BoxSpy(monkeypatch)
    loss = method.loss(batch).loss
    shrink = method.shrink if isinstance(method, SABR) else 1.0
    lower, upper = (torch.cat(v).flatten(1).numpy() for v in (spy.lower, spy.upper))
    if isinstance(method, IBP):
        images = batch.images.flatten(1).numpy()
        lower, upper = images - EPS, images + EPS
        if clip:
            lower, upper = lower.clip(0, 1), upper.clip(0, 1)
    losses = [numpy_loss(linear, lower[i], upper[i], int(batch.labels[i]), shrink) for i in range(6)]
    assert loss.item() == pytest.approx(np.mean(losses), rel=1e-9)


@pytest.mark.parametrize("clip", [False, True])
def test_ibp_with_batch_norm_is_the_mean_of_equation_2(clip: bool) -> None:
    network, traced = make_network()
    batch = make_batch(traced, clip=clip)
    norms = norms_of(network, batch.images)
    rows = zip(batch.images, batch.labels, strict=True)
    slow = torch.stack([ibp_loss(network, x, int(y), EPS, clip, norms) for x, y in rows]).mean()
    loss = IBP().loss(batch).loss
    torch.testing.assert_close(loss, slow, rtol=1e-10, atol=1e-10)
    for a, b in zip(gradients(network, loss), gradients(network, slow), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tau_ratio", [1.0, 1 - 1e-9])
@pytest.mark.parametrize("clip", [False, True])
def test_sabr_becomes_ibp_as_tau_reaches_eps(tau_ratio: float, clip: bool) -> None:
    _, traced = make_network()
    sabr = SABR(tau_ratio=tau_ratio, attack=FEW_STEPS).loss(make_batch(traced, clip=clip)).loss
    torch.testing.assert_close(sabr, IBP().loss(make_batch(traced, clip=clip)).loss, rtol=0, atol=1e-6)


@pytest.mark.parametrize("clip", [False, True])
def test_sabr_with_tau_0_is_cross_entropy_at_the_adversarial_point(clip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _, traced = make_network()
    batch = make_batch(traced, clip=clip)
    attack, found = module.pgd, []
    monkeypatch.setattr(module, "pgd", lambda *a, **k: found.append(attack(*a, **k)) or found[-1])
    loss = SABR(tau_ratio=0.0, attack=FEW_STEPS).loss(batch).loss
    assert found[0].abs().max() <= EPS + 1e-12
    expected = F.cross_entropy(batch.graph(batch.images + found[0]), batch.labels)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    assert loss > batch.clean_loss


def test_sabr_moves_the_adversarial_point_of_the_whole_eps_ball_inwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the authors' code: the attack has all of eps, and its result is clamped so that the small box fits."""
    _, traced = make_network()
    batch = make_batch(traced)
    delta = (2 * random(*batch.images.shape, seed=9) - 1) * EPS
    radii: list[float] = []
    monkeypatch.setattr(module, "pgd", lambda model, images, labels, radius, *a, **k: radii.append(radius) or delta)
    spy = BoxSpy(monkeypatch)
    SABR(tau_ratio=0.4, attack=FEW_STEPS).loss(batch)
    assert radii == [EPS]
    centre = (spy.lower[0] + spy.upper[0]) / 2
    torch.testing.assert_close(centre - batch.images, delta.clamp(-0.6 * EPS, 0.6 * EPS), rtol=0, atol=1e-12)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("tau_ratio", [0.0, 0.1, 0.4, 0.5, 0.6, 0.7, 0.9, 1.0])
def test_sabr_keeps_the_small_box_inside_the_eps_box(
    tau_ratio: float, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, traced = make_network()
    batch = make_batch(traced, clip=clip)
    spy = BoxSpy(monkeypatch)
    SABR(tau_ratio=tau_ratio, attack=FEW_STEPS).loss(batch)
    (lower,), (upper,) = spy.lower, spy.upper
    least, most = batch.images - EPS, batch.images + EPS
    if clip:
        least, most = least.clamp(0, 1), most.clamp(0, 1)
    assert (lower >= least - 1e-9).all()
    assert (upper <= most + 1e-9).all()
    # and it is as large as tau asks, where the eps-box has room
    width = torch.minimum(torch.full_like(lower, 2 * tau_ratio * EPS), most - least)
    torch.testing.assert_close(upper - lower, width, rtol=0, atol=1e-9)
