"""CROWN-IBP against a second implementation: backward substitution neuron by neuron, in NumPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.steps import CLASSES, EPS, gradients, make_batch, make_network, random
from support.steps import one_thread as one_thread
from test_taps import make_mlp
from torch import Tensor, nn

import citrus.methods.crown_ibp as module
from citrus.attacks import Ascent, pgd
from citrus.bounds import Box, Planes, margin_loss, margins
from citrus.errors import CitrusError
from citrus.methods import IBP, Batch, CrownIBP
from citrus.networks import Graph, fold

Layers = list[tuple[np.ndarray, np.ndarray]]
TO_THE_END = {"crown_start": 1.0, "crown_end": 1.0}


def slow_boxes(layers: Layers, lower: np.ndarray, upper: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Interval bounds of what enters each ReLU and, at the end, of what leaves the last one."""
    found = []
    for weight, bias in layers[:-1]:
        low = np.array(
            [
                b + sum(w * (lower if w > 0 else upper)[k] for k, w in enumerate(row))
                for row, b in zip(weight, bias, strict=True)
            ]
        )
        high = np.array(
            [
                b + sum(w * (upper if w > 0 else lower)[k] for k, w in enumerate(row))
                for row, b in zip(weight, bias, strict=True)
            ]
        )
        found.append((low, high))
        lower, upper = np.maximum(low, 0), np.maximum(high, 0)
    return [*found, (lower, upper)]


def slow_row(layers: Layers, boxes: list, row: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """CROWN's lower bound of row @ network: each ReLU is replaced by its lower or its upper line on the way back."""
    weight, bias = layers[-1]
    a, constant = row @ weight, float(row @ bias)
    for (weight, bias), (low, high) in zip(reversed(layers[:-1]), reversed(boxes[:-1]), strict=True):
        for k in range(len(a)):
            if high[k] <= 0:
                slope = intercept = 0.0
            elif low[k] >= 0:
                slope, intercept = 1.0, 0.0
            elif a[k] < 0:  # above: the chord from (low, 0) to (high, high)
                slope = high[k] / (high[k] - low[k])
                intercept = -slope * low[k]
            else:  # below: whichever of 0 and z leaves the smaller triangle
                slope, intercept = (1.0 if high[k] > -low[k] else 0.0), 0.0
            constant += a[k] * intercept
            a[k] *= slope
        constant += float(a @ bias)
        a = a @ weight
    return constant + sum(c * (lower if c > 0 else upper)[k] for k, c in enumerate(a))


def slow_loss(layers: Layers, lower: np.ndarray, upper: np.ndarray, label: int, crown: float, fused: bool) -> float:
    boxes = slow_boxes(layers, lower, upper)
    low, high = boxes[-1]
    weight, bias = layers[-1]
    rows = [np.eye(CLASSES)[label] - np.eye(CLASSES)[j] for j in range(CLASSES) if j != label]
    least, most = [], []
    for row in rows:
        w, b = row @ weight, row @ bias
        least.append(b + sum(v * (low if v > 0 else high)[k] for k, v in enumerate(w)))
        most.append(b + sum(v * (high if v > 0 else low)[k] for k, v in enumerate(w)))
    if not fused:
        mixed = [
            crown * slow_row(layers, boxes, r, lower, upper) + (1 - crown) * m for r, m in zip(rows, least, strict=True)
        ]
        return math.log(1 + sum(math.exp(-m) for m in mixed))
    interval = 1 + sum(math.exp(-m) for m in least)
    total, linear = np.zeros(CLASSES), 1.0
    for row, m, n in zip(rows, least, most, strict=True):
        slope = (math.exp(-m) - math.exp(-n)) / (n - m)
        linear += math.exp(-m) + slope * m
        total += slope * row
    linear -= slow_row(layers, boxes, total, lower, upper)
    return math.log(crown * linear + (1 - crown) * interval)


def at_ramp(batch: Batch, ramp: float) -> Batch:
    """As the loop hands it over while eps grows."""
    return replace(batch, ramp=torch.tensor(ramp, dtype=torch.float64), ramping=True)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("ramp", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("start", "end", "shares"), [(1.0, 0.0, (1.0, 0.7, 0.0)), (0.2, 0.8, (0.2, 0.38, 0.8))])
def test_the_loss_equals_the_plain_loops(
    start: float, end: float, shares: tuple[float, ...], ramp: float, fused: bool, clip: bool
) -> None:
    network, traced = make_mlp()
    batch = at_ramp(make_batch(traced, clip=clip, eps=0.03), ramp)
    loss = CrownIBP(start, end, fused=fused).loss(batch).loss
    layers = [(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in network if isinstance(m, nn.Linear)]
    crown = dict(zip((0.0, 0.3, 1.0), shares, strict=True))[ramp]
    total = 0.0
    for x, label in zip(batch.images.flatten(1).numpy(), batch.labels.tolist(), strict=True):
        lower, upper = (v.clip(0, 1) if clip else v for v in (x - 0.03, x + 0.03))
        total += slow_loss(layers, lower, upper, label, crown, fused) / 6
    assert loss.item() == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("fused", [False, True])
def test_the_gradient_equals_differences_of_the_loss(fused: bool) -> None:
    network, traced = make_network()
    method = CrownIBP(**TO_THE_END, fused=fused)

    def loss() -> Tensor:
        return method.loss(make_batch(traced)).loss

    found = gradients(network, loss())
    for parameter, gradient in zip(network.parameters(), found, strict=True):
        direction = random(*parameter.shape, seed=7) * 2 - 1
        with torch.no_grad():
            sides = []
            for step in (1e-6, -2e-6, 1e-6):
                parameter.add_(direction, alpha=step)
                sides.append(loss().item())
        assert (sides[0] - sides[1]) / 2e-6 == pytest.approx((gradient * direction).sum().item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("crown", [1.0, 0.5])
def test_the_loss_bounds_the_loss_at_every_point_of_the_box(fused: bool, clip: bool, crown: float) -> None:
    _, traced = make_network()
    plain = make_batch(traced, clip=clip)
    method = CrownIBP(crown, crown, fused=fused)
    points = [plain.images + (2 * random(*plain.images.shape, seed=i).round() - 1) * EPS for i in range(60)]
    points += [plain.images + (2 * random(*plain.images.shape, seed=i) - 1) * EPS for i in range(20)]
    points += [
        plain.images
        + pgd(
            plain.frozen(),
            plain.images,
            plain.labels,
            EPS,
            Ascent(steps=20),
            generator=torch.Generator().manual_seed(i),
        )
        for i in range(20)
    ]
    for k in range(6):  # image by image: a mean could hide a bound that fails
        bound = method.loss(replace(plain, images=plain.images[k : k + 1], labels=plain.labels[k : k + 1])).loss
        for point in points:
            logits = plain.graph(plain.clipped(point[k : k + 1]))
            assert margin_loss(margins(logits, plain.labels[k : k + 1])) <= bound + 1e-9


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_it_begins_with_the_linear_bound_and_ends_as_ibp(
    fused: bool, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, traced = make_network()
    batch = make_batch(traced, clip=clip)
    method, ibp = CrownIBP(fused=fused), IBP().loss(batch).loss
    first, half, last = (method.loss(at_ramp(batch, ramp)).loss for ramp in (0.0, 0.5, 1.0))
    assert first < half < last
    torch.testing.assert_close(last, ibp, rtol=1e-12, atol=1e-12)
    assert torch.equal(CrownIBP(**TO_THE_END, fused=fused).loss(batch).loss, first)
    for share in (0.0, 0.5, 1.0):
        same = method.loss(replace(batch, ramp=share, ramping=True)).loss
        assert torch.equal(same, method.loss(at_ramp(batch, share)).loss)

    def fail(*_: object) -> None:
        raise AssertionError("no linear bound is needed any more")

    monkeypatch.setattr(module, "training_planes", fail)
    assert torch.equal(method.loss(batch).loss, ibp)
    assert torch.equal(CrownIBP(0.0, 0.0, fused=fused).loss(at_ramp(batch, 0.5)).loss, ibp)
    with pytest.raises(AssertionError, match="no linear bound"):
        method.loss(at_ramp(batch, 0.5))


def test_where_no_relu_is_undecided_the_linear_bound_is_exact() -> None:
    network, traced = make_mlp()
    batch = make_batch(traced, eps=1e-4)
    result = CrownIBP(**TO_THE_END, fused=False).loss(batch)
    assert result.boxes
    assert all((box.centre.abs() > box.radius).all() for box in result.boxes.pre_activations)
    losses = []
    for x, y in zip(batch.images[:, None].requires_grad_(), batch.labels.tolist(), strict=True):
        scores = network(x)[0]
        worst = [torch.zeros((), dtype=torch.float64)]
        for j in (j for j in range(CLASSES) if j != y):
            (slope,) = torch.autograd.grad(scores[j] - scores[y], x, create_graph=True)
            worst.append(scores[j] - scores[y] + 1e-4 * slope.abs().sum())
        losses.append(torch.stack(worst).logsumexp(0))
    exact = torch.stack(losses).mean()
    torch.testing.assert_close(result.loss, exact, rtol=1e-10, atol=1e-10)
    assert IBP().loss(batch).loss > exact + 1e-4
    for a, b in zip(gradients(network, result.loss), gradients(network, exact), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_with_two_classes_fusion_only_loosens() -> None:
    network, traced = make_mlp(classes=2)
    plain = make_batch(make_mlp()[1], eps=0.03)
    batch = replace(plain, labels=plain.labels % 2, graph=fold(traced))
    fused, exact = (CrownIBP(**TO_THE_END, fused=f).loss(batch).loss for f in (True, False))
    assert exact < fused < IBP().loss(batch).loss
    assert all(g.isfinite().all() for g in gradients(network, fused + exact))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("weight", "bias"), [(1e-30, 1), (1e-3, 1), (1e3, 1), (1e6, 1), (1, 1e9), (1e-30, 1e9)])
def test_huge_and_tiny_bounds_stay_finite_in_float32(fused: bool, weight: float, bias: float) -> None:
    network, traced = make_network(dtype=torch.float32)
    with torch.no_grad():
        network[-1].weight *= weight
        network[-1].bias *= bias
    batch = at_ramp(make_batch(traced), 0.0)
    loss = CrownIBP(fused=fused).loss(batch).loss
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in gradients(network, loss))


@pytest.mark.parametrize("fused", [False, True])
def test_images_beyond_doubt_have_no_loss_and_no_gradient_in_float32(fused: bool) -> None:
    network, traced = make_network(dtype=torch.float32)
    with torch.no_grad():
        network[-1].weight *= 1e5
    batch = make_batch(traced, eps=1e-6)
    loss = CrownIBP(**TO_THE_END, fused=fused).loss(replace(batch, labels=batch.graph(batch.images).argmax(1))).loss
    assert 0 <= loss < 1e-6
    assert all(g.abs().max() < 1e-3 for g in gradients(network, loss))


@pytest.mark.parametrize("fused", [False, True])
def test_no_more_rows_are_carried_back_at_once_than_boxes_may_be_kept(
    fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, traced = make_network()
    rows: list[int] = []
    planes = module.training_planes

    def spy(graph: Graph, centre: Tensor, spec: Tensor, boxes: list[Box]) -> Planes:
        rows.append(spec.shape[0] * spec.shape[1])
        return planes(graph, centre, spec, boxes)

    monkeypatch.setattr(module, "training_planes", spy)
    CrownIBP(**TO_THE_END, fused=fused).loss(replace(make_batch(traced), max_boxes=4))
    assert rows == ([4, 2] if fused else [3] * 6)


@pytest.mark.parametrize("name", ["crown_start", "crown_end"])
@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_shares_outside_of_0_to_1_are_refused(name: str, share: float) -> None:
    with pytest.raises(CitrusError, match=f"{name} must lie in .0, 1., got {share}"):
        CrownIBP(**{name: share}).check(8)
