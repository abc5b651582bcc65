"""Shi et al.'s initialisation and regularisers, against formulas written a second time in plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.steps import TINY_STD, tiny_splits
from support.steps import one_thread as one_thread
from torch import Tensor, nn

import citrus.training.step as step_module
from citrus.attacks import Ascent
from citrus.bounds import Box
from citrus.methods import IBP, SABR, AnyMethod, Boxes, Citrus, Standard
from citrus.networks import build
from citrus.training import TrainConfig, Trainer
from citrus.training.step import regularizer
from citrus.training.weights import balance, initialize, make_network, tightness

FEW_STEPS = Ascent(steps=1)
CONFIG = TrainConfig(data="tiny", network="mlp", method=IBP(), eps=0.1, epochs=4, batch_size=6)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------------------------------------- initialisation


def test_weights_are_normal_with_the_std_of_the_paper() -> None:
    network = build("cnn7", (3, 12, 12), 10)
    initialize(network, generator())
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        kernel = math.prod(layer.kernel_size) if isinstance(layer, nn.Conv2d) else 1
        inputs = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.in_features
        sigma = math.sqrt(2 * math.pi) / (inputs * kernel)
        weight, count = layer.weight.double(), layer.weight.numel()
        assert weight.std().item() == pytest.approx(sigma, rel=5 / math.sqrt(2 * count))
        assert abs(weight.mean().item()) < 5 * sigma / math.sqrt(count)
        inside = (weight.abs() < sigma).double().mean().item()  # 68 % tells a normal from a uniform (58 %)
        assert inside == pytest.approx(0.6827, abs=5 * 0.466 / math.sqrt(count))


def test_last_layer_biases_and_batch_norm_are_left_alone() -> None:
    network = build("cnn7", (1, 12, 12), 10)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    initialize(network, generator())
    drawn = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    layers = [name for name, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert drawn == {f"{name}.weight" for name in layers[:-1]}


def test_the_seed_decides_the_initialisation() -> None:
    def weights(seed: int, init: str = "shi") -> dict[str, Tensor]:
        state = torch.get_rng_state()
        network = make_network(replace(CONFIG, seed=seed, init=init), tiny_splits(6))
        assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
        return dict(network.named_parameters())

    first, again, other, default = weights(0), weights(0), weights(1), weights(0, "default")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    same = {name for name in first if torch.equal(first[name], default[name])}
    assert same == {name for name in first if name.endswith("bias")} | {list(first)[-2]}


# ------------------------------------------------------------------------------------------------------ regularisers


def slow_tightness(input_radius: float, boxes: tuple[Box, ...]) -> float:
    total = 0.0
    for box in boxes:
        mean = max(float(np.mean(box.radius.detach().numpy())), 1e-12)
        total += max(0.5 - input_radius / mean, 0.0) / 0.5
    return total / len(boxes)


def rho(top: float, bottom: float) -> float:
    """min(z, 1/z) for z = top / bottom, with z infinite where bottom is 0; 0/0 is no number."""
    if top == 0 and bottom == 0:
        return math.nan
    return 0.0 if top == 0 or bottom == 0 else min(top / bottom, bottom / top)


def slow_balance(boxes: tuple[Box, ...]) -> float:
    total = 0.0
    for box in boxes:
        centre, radius = box.centre.detach().numpy().ravel(), box.radius.detach().numpy().ravel()
        mean = centre.mean()
        sums = {"active": [0.0, 0.0], "inactive": [0.0, 0.0]}
        for c, r in zip(centre, radius, strict=True):
            kind = "active" if c - r > 0 else "inactive" if c + r < 0 else ""
            if kind:
                sums[kind][0] += c / len(centre)
                sums[kind][1] += (c - mean) ** 2
        alpha = rho(sums["active"][0], -sums["inactive"][0])
        beta = rho(sums["active"][1], sums["inactive"][1])
        term = (max(0.5 - alpha, 0.0) + max(0.5 - beta, 0.0)) / 0.5
        if not math.isnan(alpha + beta):  # a layer without a ratio is skipped, and yet counts in the mean
            total += term
    return total / len(boxes)


def random_box(seed: int, shift: float, radius: float, shape: tuple[int, ...] = (3, 4, 2, 2)) -> Box:
    centre = torch.randn(shape, generator=generator(seed), dtype=torch.float64) + shift
    spread = torch.rand(shape, generator=generator(seed + 50), dtype=torch.float64)
    return Box(centre.requires_grad_(), (radius * spread).requires_grad_())


BOXES = {
    "mixed": (random_box(0, 0.0, 0.5), random_box(1, 0.5, 1.0, (3, 9)), random_box(2, -0.4, 0.1, (3, 5))),
    "one layer": (random_box(3, 0.8, 0.3),),
    "mostly active": (random_box(4, 1.5, 0.2), random_box(5, 2.0, 0.2)),
    "mostly inactive": (random_box(6, -1.5, 0.2), random_box(7, -2.0, 0.2)),
    "no active": (random_box(8, -9.0, 0.5), random_box(0, 0.0, 0.5)),
    "no inactive": (random_box(9, 9.0, 0.5), random_box(0, 0.0, 0.5)),
    "none stable": (Box(random_box(10, 0.0, 1.0).centre, torch.full((3, 4, 2, 2), 50.0, dtype=torch.float64)),),
    "none stable beside others": (
        Box(random_box(10, 0.0, 1.0).centre, torch.full((3, 4, 2, 2), 50.0, dtype=torch.float64)),
        random_box(4, 1.5, 0.2),
    ),
    "all centres equal": (Box(torch.ones(3, 4, dtype=torch.float64).requires_grad_(), torch.zeros(3, 4).double()),),
    "radius 0": (random_box(11, 0.0, 0.0), random_box(12, 0.3, 0.0)),
    "radius tiny": (random_box(11, 0.0, 1e-9), random_box(12, 0.3, 1e-6)),
}


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("input_radius", [1e-6, 0.1, 3.0])
def test_regularisers_match_the_plain_loops(name: str, input_radius: float) -> None:
    boxes = BOXES[name]
    assert tightness(input_radius, boxes).item() == pytest.approx(slow_tightness(input_radius, boxes), abs=1e-10)
    assert balance(boxes).item() == pytest.approx(slow_balance(boxes), abs=1e-10)


@pytest.mark.parametrize("name", BOXES)
def test_values_and_gradients_are_finite_even_at_the_edges(name: str) -> None:
    value = tightness(0.1, BOXES[name]) + balance(BOXES[name])
    assert value.isfinite()
    if value.requires_grad:
        inputs = [t for box in BOXES[name] for t in (box.centre, box.radius) if t.requires_grad]
        found = torch.autograd.grad(value, inputs, materialize_grads=True)
        assert all(g.isfinite().all() for g in found)


def test_gradients_match_finite_differences() -> None:
    boxes = BOXES["mixed"]
    parts = [t for box in boxes for t in (box.centre, box.radius)]

    def both(*tensors: Tensor) -> Tensor:
        rebuilt = tuple(Box(c, r) for c, r in zip(tensors[::2], tensors[1::2], strict=True))
        return tightness(0.05, rebuilt) + balance(rebuilt)

    assert torch.autograd.gradcheck(both, parts)


def test_tightness_by_hand() -> None:
    """Boxes up to twice as wide as the input cost nothing; at four times, half."""
    boxes = tuple(Box(torch.zeros(1, 2), torch.full((1, 2), r)) for r in (1.0, 2.0, 4.0))
    assert [tightness(1.0, (box,)).item() for box in boxes] == [0.0, 0.0, 0.5]
    assert tightness(1.0, boxes).item() == pytest.approx(0.5 / 3)


def test_balance_by_hand() -> None:
    """Centres 4, -1, -1 (mean 2/3): alpha = 4/2, rho 1/2, costs nothing; beta = 100/50, nothing either."""
    radius = torch.full((1, 3), 0.5)
    assert balance((Box(torch.tensor([[4.0, -1.0, -1.0]]), radius),)).item() == pytest.approx(0.0, abs=1e-6)
    # 8, -1, -1: mean 2, alpha = 8/2 -> 1/4; beta = 36/18 -> 1/2: (1/4 + 0) / (1/2)
    assert balance((Box(torch.tensor([[8.0, -1.0, -1.0]]), radius),)).item() == pytest.approx(0.5, abs=1e-6)
    # all active: both ratios are 0, the largest cost
    assert balance((Box(torch.tensor([[8.0, 1.0, 2.0]]), radius),)).item() == pytest.approx(2.0)


# ----------------------------------------------------------------------------------------------- through the trainer


def rows(config: TrainConfig) -> list[dict[str, float]]:
    """One row of metrics per step: the training set is one batch."""
    return list(Trainer(config, tiny_splits(6)).epochs())


METHODS: list[AnyMethod] = [
    IBP(),
    SABR(tau_ratio=0.4, attack=FEW_STEPS),
    Citrus(tau_ratio=0.4, group_size=3, attack=FEW_STEPS),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_the_weight_falls_from_lambda_to_0_as_eps_grows(method: AnyMethod) -> None:
    config = replace(CONFIG, method=method, epochs=9, warmup_epochs=1, ramp_epochs=6, regularizer=0.3)
    found = rows(replace(config, init="default"))  # with Shi's own initialisation there is little to regularise
    assert [row["eps"] > 0 for row in found] == [False] + [True] * 8
    for row in found[:6]:
        weight = (row["loss"] - row["robust_loss"]) / row["regularizer"]
        assert weight == pytest.approx(0.3 * (1 - row["eps"] / 0.1), rel=1e-3)
        assert weight > 0
    for row in found[6:]:
        assert row["eps"] == 0.1
        assert "regularizer" not in row
        assert row["loss"] == row["robust_loss"]


def test_standard_training_and_weight_0_have_no_regulariser() -> None:
    for config in (replace(CONFIG, method=Standard(), ramp_epochs=3), replace(CONFIG, regularizer=0.0, ramp_epochs=3)):
        assert all("regularizer" not in row and row["loss"] == row["robust_loss"] for row in rows(config))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("method", "share"), [(METHODS[0], 1.0), (METHODS[1], 0.4), (METHODS[2], 0.4)])
def test_the_input_radius_is_that_of_the_bounded_boxes_after_normalisation(
    method: AnyMethod, share: float, normalize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    real = step_module.tightness

    def spy(input_radius: Tensor, boxes: tuple[Box, ...]) -> Tensor:
        seen.append(input_radius.item())
        return real(input_radius, boxes)

    monkeypatch.setattr(step_module, "tightness", spy)
    config = replace(CONFIG, method=method, epochs=5, warmup_epochs=1, ramp_epochs=4, normalize=normalize)
    eps = [row["eps"] for row in rows(config)]
    scale = np.mean([1 / s for s in TINY_STD]) if normalize else 1.0
    assert seen == pytest.approx([1e-6 * scale, *(share * e * scale for e in eps[1:4])], rel=1e-4)


def test_both_terms_are_added() -> None:
    boxes = (random_box(1, 0.5, 1.0), random_box(2, -0.4, 0.1))
    radius = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    expected = slow_tightness((0.1 / 0.2 + 0.2 / 0.4 + 0.3 / 0.5) / 3, boxes) + slow_balance(boxes)
    std = torch.tensor(TINY_STD, dtype=torch.float64)
    assert regularizer(Boxes(boxes, radius), std).item() == pytest.approx(expected, rel=1e-9)
