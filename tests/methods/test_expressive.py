"""MTL-IBP, CC-IBP and Exp-IBP against their formulas in plain Python, their two ends and what lies between."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.steps import EPS, FEW_STEPS, gradients, make_batch, make_network
from support.steps import one_thread as one_thread
from torch import Tensor, nn

import citrus.methods.base as module
from citrus.attacks import Ascent
from citrus.errors import CitrusError
from citrus.methods import CCIBP, IBP, MTLIBP, PGD, Batch, ExpIBP
from citrus.methods.base import box_bounds
from citrus.methods.expressive import Expressive
from citrus.networks import fold, trace

KINDS = (MTLIBP, CCIBP, ExpIBP)
every_kind = pytest.mark.parametrize("kind", KINDS)
clip_or_not = pytest.mark.parametrize("clip", [False, True])

# A network of two pixels, two hidden neurons and three classes, and two images.
HIDDEN = ((2.0, -1.0), (0.5, 1.5))
HIDDEN_BIAS = (-0.3, 0.1)
OUT = ((1.0, -2.0), (-1.0, 0.5), (0.25, 1.0))
OUT_BIAS = (0.2, 0.0, -0.1)
IMAGES = ((0.6, 0.3), (0.05, 0.9))
LABELS = (0, 2)
DELTA = ((0.1, -0.1), (-0.05, 0.1))


def hand_batch(clip: bool = False) -> Batch:
    first, last = nn.Linear(2, 2), nn.Linear(2, 3)
    network = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
    traced = trace(network, (1, 1, 2))
    network.double()
    with torch.no_grad():
        for layer, weight, bias in ((first, HIDDEN, HIDDEN_BIAS), (last, OUT, OUT_BIAS)):
            layer.weight.copy_(torch.tensor(weight, dtype=torch.float64))
            layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    images = torch.tensor(IMAGES, dtype=torch.float64).view(2, 1, 1, 2)
    labels = torch.tensor(LABELS)
    clean = F.cross_entropy(network(images), labels)
    return Batch(images, labels, clean, fold(traced), EPS, clip, torch.Generator().manual_seed(0))


def hand_margins(lower: list[float], upper: list[float], label: int) -> list[float]:
    """Least margins of one box; of one point when both corners are the same."""
    low, high = [], []
    for row, bias in zip(HIDDEN, HIDDEN_BIAS, strict=True):
        low.append(max(0.0, bias + sum(w * (a if w > 0 else b) for w, a, b in zip(row, lower, upper, strict=True))))
        high.append(max(0.0, bias + sum(w * (b if w > 0 else a) for w, a, b in zip(row, lower, upper, strict=True))))
    result = []
    for j in range(3):
        if j != label:
            row = [right - wrong for right, wrong in zip(OUT[label], OUT[j], strict=True)]
            least = sum(w * (a if w > 0 else b) for w, a, b in zip(row, low, high, strict=True))
            result.append(least + OUT_BIAS[label] - OUT_BIAS[j])
    return result


def cross_entropy(margins: list[float]) -> float:
    return math.log(1 + sum(math.exp(-m) for m in margins))


def by_hand(kind: type[Expressive], alpha: float, clip: bool) -> float:
    bounds, attacked = [], []
    for image, delta, label in zip(IMAGES, DELTA, LABELS, strict=True):
        lower, upper = [p - EPS for p in image], [p + EPS for p in image]
        if clip:
            lower, upper = [min(max(p, 0.0), 1.0) for p in lower], [min(max(p, 0.0), 1.0) for p in upper]
        point = [p + d for p, d in zip(image, delta, strict=True)]
        bounds.append(hand_margins(lower, upper, label))
        attacked.append(hand_margins(point, point, label))
    certified, adversarial = (sum(cross_entropy(m) for m in rows) / 2 for rows in (bounds, attacked))
    if kind is MTLIBP:
        return alpha * certified + (1 - alpha) * adversarial
    if kind is ExpIBP:
        return math.exp(alpha * math.log(certified) + (1 - alpha) * math.log(adversarial))
    mixed = [
        [alpha * b + (1 - alpha) * a for b, a in zip(*rows, strict=True)] for rows in zip(bounds, attacked, strict=True)
    ]
    return sum(cross_entropy(m) for m in mixed) / 2


@every_kind
@clip_or_not
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_formula_by_hand(kind: type[Expressive], clip: bool, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = hand_batch(clip)
    delta = torch.tensor(DELTA, dtype=torch.float64).view(2, 1, 1, 2)
    monkeypatch.setattr(module, "pgd", lambda *a, **k: delta)
    expected = by_hand(kind, alpha, clip)
    assert kind(alpha=alpha).loss(batch).loss.item() == pytest.approx(expected, rel=1e-12)
    assert by_hand(kind, 0.5, False) != pytest.approx(by_hand(kind, 0.5, True)), "clipping matters here"


@every_kind
@clip_or_not
def test_alpha_0_is_adversarial_training(kind: type[Expressive], clip: bool) -> None:
    network, traced = make_network()
    mixed = kind(alpha=0.0, attack=FEW_STEPS).loss(make_batch(traced, clip=clip)).loss
    adversarial = PGD(attack=FEW_STEPS).loss(make_batch(traced, clip=clip)).loss
    same_with_gradient(network, mixed, adversarial)


@every_kind
@clip_or_not
def test_alpha_1_is_ibp(kind: type[Expressive], clip: bool) -> None:
    network, traced = make_network()
    for near in (1.0, 1 - 1e-12):
        mixed = kind(alpha=near, attack=FEW_STEPS).loss(make_batch(traced, clip=clip)).loss
        same_with_gradient(network, mixed, IBP().loss(make_batch(traced, clip=clip)).loss)


@every_kind
def test_ibp_alone_needs_no_attack(kind: type[Expressive], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pgd", lambda *a, **k: pytest.fail("attacked for nothing"))
    _, traced = make_network()
    kind(alpha=1.0).loss(make_batch(traced))


def same_with_gradient(network: nn.Module, a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    for x, y in zip(gradients(network, a), gradients(network, b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


@every_kind
def test_an_attack_of_factor_0_is_the_clean_image(kind: type[Expressive], monkeypatch: pytest.MonkeyPatch) -> None:
    network, traced = make_network()
    batch = make_batch(traced)
    method = kind(alpha=0.3, attack_factor=0.0)
    bounds, _ = box_bounds(batch, *batch.box(batch.images, EPS), batch.labels)
    logits = batch.graph(batch.images)
    rows = [[logits[i, y] - logits[i, j] for j in range(4) if j != y] for i, y in enumerate(batch.labels.tolist())]
    expected = method.mix(bounds.lower, torch.stack([torch.stack(row) for row in rows]))
    monkeypatch.setattr(module, "pgd", lambda *a, **k: pytest.fail("there is nothing to attack"))
    same_with_gradient(network, method.loss(batch).loss, expected)
    if kind is MTLIBP:
        same_with_gradient(network, method.loss(batch).loss, 0.3 * IBP().loss(batch).loss + 0.7 * batch.clean_loss)


@every_kind
@clip_or_not
@pytest.mark.parametrize("factor", [0.5, 2.1])
def test_the_factor_scales_the_attack_and_not_the_box(
    kind: type[Expressive], clip: bool, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, traced = make_network()
    batch = make_batch(traced, clip=clip)
    attack, found = module.pgd, list[Tensor]()
    monkeypatch.setattr(module, "pgd", lambda *a, **k: found.append(attack(*a, **k)) or found[-1])
    loss = kind(alpha=0.4, attack_factor=factor).loss(batch).loss
    assert found[0].abs().max() <= factor * EPS + 1e-12
    assert found[0].abs().max() > 0.99 * factor * EPS, "one step of this size lands on a corner"
    if clip:
        assert ((batch.images + found[0]) - (batch.images + found[0]).clamp(0, 1)).abs().max() < 1e-12
    bounds, _ = box_bounds(batch, *batch.box(batch.images, EPS), batch.labels)
    logits = batch.graph(batch.images + found[0])
    wrong = [[j for j in range(4) if j != y] for y in batch.labels.tolist()]
    attacked = logits.gather(1, batch.labels[:, None]) - logits.gather(1, torch.tensor(wrong))
    torch.testing.assert_close(loss, kind(alpha=0.4).mix(bounds.lower, attacked))


def test_all_agree_on_a_linear_network_of_two_classes() -> None:
    """There the attack's corner is the worst point of the box, and the bound is exact."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 2)).double()
    traced = trace(network.float(), (1, 2, 3))
    network.double()
    images = torch.rand(5, 1, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0, 1])
    batch = Batch(images, labels, images.new_zeros(()), fold(traced), EPS, False, torch.Generator().manual_seed(2))
    weight, bias = network[1].weight, network[1].bias  # type: ignore[union-attr]
    sign = 1.0 - 2 * labels
    margin = sign * (images.flatten(1) @ (weight[0] - weight[1]) + bias[0] - bias[1])
    worst = (1 + (EPS * (weight[0] - weight[1]).abs().sum() - margin).exp()).log()
    for kind in (MTLIBP, CCIBP):
        for alpha in (0.0, 0.3, 1.0):
            torch.testing.assert_close(kind(alpha=alpha).loss(batch).loss, worst.mean())
    torch.testing.assert_close(ExpIBP(alpha=0.3).loss(batch).loss, worst.mean())


@clip_or_not
def test_each_loss_grows_with_alpha_and_the_mix_of_losses_is_the_largest(clip: bool) -> None:
    """Jensen: the loss is convex in the margins. And a geometric mean is at most the arithmetic one."""
    _, traced = make_network()
    values: dict[type[Expressive], list[float]] = {}
    for kind in KINDS:
        values[kind] = [
            kind(alpha=alpha, attack=FEW_STEPS).loss(make_batch(traced, clip=clip)).loss.item()
            for alpha in (0.0, 0.01, 0.3, 0.7, 1.0)
        ]
        assert values[kind] == sorted(values[kind])
        assert values[kind][-1] > values[kind][0]
    for kind in (CCIBP, ExpIBP):
        assert all(a <= b + 1e-12 for a, b in zip(values[kind], values[MTLIBP], strict=True))
        assert values[kind][2] < values[MTLIBP][2]


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_that_rounds_to_0_has_a_finite_gradient(alpha: float, dtype: torch.dtype) -> None:
    for kind in KINDS:
        bounds = torch.tensor([[80.0, 900.0]], dtype=dtype, requires_grad=True)
        attacked = torch.tensor([[900.0, 900.0]], dtype=dtype, requires_grad=True)
        loss = kind(alpha=alpha).mix(bounds, attacked)
        found = torch.autograd.grad(loss, [bounds, attacked])
        assert loss.isfinite()
        assert all(g.isfinite().all() for g in found)


BAD: list[tuple[dict[str, float], str]] = [
    *(({"alpha": alpha}, rf"alpha must lie in \[0, 1\], got {alpha}") for alpha in (-0.1, 1.1, math.nan)),
    *(({"attack_factor": f}, f"attack_factor must be .*at least 0, got {f}") for f in (-1.0, math.nan, math.inf)),
]


@every_kind
@pytest.mark.parametrize(("settings", "says"), BAD)
def test_bad_settings_are_refused(kind: Callable[..., Expressive], settings: dict[str, float], says: str) -> None:
    with pytest.raises(CitrusError, match=says):
        kind(**settings).check(10)


@every_kind
@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"alpha": 1.0}, {"attack_factor": 0.0}, {"attack_factor": 3.0}])
def test_settings_at_the_edge_are_accepted(kind: Callable[..., Expressive], settings: dict[str, float]) -> None:
    kind(**settings).check(10)


def test_eps_may_be_a_device_scalar() -> None:
    _, traced = make_network(dtype=torch.float32)
    for kind in KINDS:
        method = kind(alpha=0.2, attack_factor=1.5, attack=Ascent(steps=2, step_size=0.5))
        plain = method.loss(make_batch(traced)).loss
        scalar = method.loss(replace(make_batch(traced), eps=torch.tensor(EPS, dtype=torch.float64))).loss
        assert scalar.dtype == torch.float32
        torch.testing.assert_close(plain, scalar, rtol=1e-5, atol=1e-6)
