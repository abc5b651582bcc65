"""COLT against a second way to write it: zonotopes as explicit matrices, an attack in a plain loop, image by image."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.steps import CLASSES, SHAPE, gradients, make_batch, make_network, random, tiny_splits
from support.steps import one_thread as one_thread
from torch import Tensor, nn

from citrus.attacks import Ascent
from citrus.errors import CitrusError
from citrus.methods import Batch, Colt
from citrus.networks import fold, trace
from citrus.training import TrainConfig, Trainer

EPS = 0.1
SMALL = Ascent(steps=3, step_size=0.5, decay=0.5, decay_at=(0.5,))
STRONG = Ascent(steps=40, restarts=3, step_size=0.25, decay=0.3, decay_at=(0.5, 0.8))
ALL_STAGES = range(9)  # of Colt(stages=3, mix_steps=2)


def setting(stage: int, clip: bool = False, eps: float = EPS, seed: int = 0) -> tuple[nn.Sequential, Batch]:
    network, traced = make_network(batch_norm=False)
    return network, replace(make_batch(traced, clip=clip, eps=eps, seed=seed), stage=stage)


# ------------------------------------------------------------------------------------------- the second way


def matrix(layers: nn.Sequential, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """An affine part of the network as W, w on flat vectors."""
    basis = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    shift = layers(torch.zeros(1, *shape, dtype=torch.float64)).flatten(1)
    return (layers(basis).flatten(1) - shift).T.detach(), shift[0].detach()


def affine_parts(network: nn.Sequential) -> list[nn.Sequential]:
    """The layers between the ReLUs."""
    return [network[:2], network[3:5], network[6:]]


def zonotope(network: nn.Sequential, lower: Tensor, upper: Tensor, relus: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """a and A of {a + A e}, flat, behind so many ReLUs, and |l||u| summed over the crossing neurons of each of them."""
    a = ((lower + upper) / 2).flatten()
    generators = torch.diag(((upper - lower) / 2).flatten())
    shapes, instability = [SHAPE, (4, 3, 3)], []
    for part, shape in zip(affine_parts(network)[:relus], shapes, strict=False):
        weight, shift = matrix(part, shape)
        a, generators = weight @ a + shift, weight @ generators
        reach = generators.abs().sum(1)
        slope, half = torch.zeros_like(a), torch.zeros_like(a)
        instability.append(torch.zeros(()))
        for i in range(len(a)):
            low, high = a[i] - reach[i], a[i] + reach[i]
            if low > 0:
                slope[i] = 1
            elif high > 0:
                slope[i], half[i] = high / (high - low), -high * low / (high - low) / 2
                instability[-1] = instability[-1] - low * high
        a, generators = slope * a + half, torch.cat([slope[:, None] * generators, torch.diag(half)], 1)
    return a, generators, instability


def behind(network: nn.Sequential, relus: int, latent: Tensor) -> Tensor:
    """The rest of the network on one flat latent point."""
    shape = (SHAPE, (4, 3, 3), (6,))[relus]
    x = latent.view(1, *shape)
    return network[(0, 3, 6)[relus] :](x)


def worst_point(network: nn.Sequential, a: Tensor, generators: Tensor, relus: int, label: Tensor, e: Tensor) -> Tensor:
    """SMALL's attack on one image: sign steps of 0.5, then of 0.25, the best of the four points is kept."""
    best, highest = e, -math.inf
    for step in (0.5, 0.5, 0.25, 0.0):
        e = e.clone().requires_grad_()
        loss = F.cross_entropy(behind(network, relus, a + generators @ e), label[None])
        (gradient,) = torch.autograd.grad(loss, e)
        if loss.item() > highest:
            best, highest = e.detach(), loss.item()
        e = (e.detach() + step * gradient.sign()).clamp(-1, 1)
    return a + generators @ best


def latent_loss(network: nn.Sequential, batch: Batch, radius: float, relus: int, generator: torch.Generator) -> Tensor:
    boxes = []
    for x in batch.images:
        lower, upper = x - radius, x + radius
        if batch.clip:
            lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
        boxes.append(zonotope(network, lower, upper, relus))
    count = len(batch.images)
    start = 2 * torch.rand(count, boxes[0][1].shape[1], generator=generator, dtype=torch.float64) - 1
    losses = []
    for (a, generators, _), label, e in zip(boxes, batch.labels, start, strict=True):
        point = worst_point(network, a, generators, relus, label, e)
        losses.append(F.cross_entropy(behind(network, relus, point), label[None]))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_the_loss_of_every_stage_by_explicit_matrices(stage: int, clip: bool) -> None:
    network, batch = setting(stage, clip)
    loss = Colt(stages=3, mix_steps=2, eps_growth=1.2, attack=SMALL).loss(batch).loss
    layer, part = divmod(stage, 3)
    radius = EPS * (1.44, 1.2, 1.0)[layer]
    generator = torch.Generator().manual_seed(0)
    for i, parameter in enumerate(network.parameters()):
        parameter.requires_grad_(i >= 2 * layer)
    slow = latent_loss(network, batch, radius, layer, generator)
    if part < 2:
        share = (0.25, 0.75)[part]
        before = batch.clean_loss if layer == 0 else latent_loss(network, batch, radius, layer - 1, generator)
        slow = share * slow + (1 - share) * before
    torch.testing.assert_close(loss, slow, rtol=1e-9, atol=1e-9)
    network.requires_grad_(True)
    moving = list(network.parameters())[2 * layer :]
    for p, q in zip(*(torch.autograd.grad(value, moving, retain_graph=True) for value in (loss, slow)), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_stability_and_l1_are_added(stage: int) -> None:
    network, batch = setting(stage)
    layer, part = divmod(stage, 3)
    plain = Colt(stages=3, mix_steps=2, eps_growth=1.2, attack=SMALL)
    without = plain.loss(batch).loss
    batch = setting(stage)[1]
    stable = replace(plain, stability=0.01, stability_growth=2.0).loss(batch).loss
    expected = 0.0
    if layer < 2:
        radius = EPS * (1.44, 1.2)[layer]
        terms = [zonotope(network, x - radius, x + radius, layer + 1)[2][-1] for x in batch.images]
        expected = (0.25, 0.75, 1.0)[part] * 0.01 * 2.0**layer * torch.stack(terms).mean().item()
        assert expected > 1e-4
    assert stable.item() - without.item() == pytest.approx(expected, abs=1e-9)
    few = replace(plain, stability=0.01, stability_growth=2.0, stability_images=2).loss(setting(stage)[1]).loss
    if layer < 2:
        expected = (0.25, 0.75, 1.0)[part] * 0.01 * 2.0**layer * torch.stack(terms[:2]).mean().item()
    assert few.item() - without.item() == pytest.approx(expected, abs=1e-9)
    sparse = replace(plain, l1=0.01).loss(setting(stage)[1]).loss
    weights = [m.weight for m in network if isinstance(m, nn.Conv2d | nn.Linear)]
    std = torch.tensor([0.3, 0.2]).view(1, 2, 1, 1)  # the normalisation is part of the first convolution
    sums = [(weights[0] / std).abs().sum(), weights[1].abs().sum(), weights[2].abs().sum()]
    assert sparse.item() - without.item() == pytest.approx(0.01 * sum(s.item() for s in sums[layer:]), rel=1e-6)


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_frozen_layers_get_no_gradient_and_all_others_do(stage: int) -> None:
    network, batch = setting(stage)
    method = Colt(stages=3, mix_steps=2, stability=0.01, l1=1e-3, attack=SMALL)
    loss = method.loss(batch).loss
    found = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
    frozen = 2 * (stage // 3)
    assert all(g is None for g in found[:frozen])
    assert all(g is not None and g.abs().sum() > 0 for g in found[frozen:])


@pytest.mark.parametrize("stage", [0, 2, 3, 5])
def test_stability_pulls_on_the_layer_whose_relus_it_bounds(stage: int) -> None:
    without, with_it = (
        gradients(network, Colt(mix_steps=2, stability=stability, attack=SMALL).loss(batch).loss)
        for stability, (network, batch) in ((0.0, setting(stage)), (0.1, setting(stage)))
    )
    layer = stage // 3
    changed = [not torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(without, with_it, strict=True)]
    assert changed[2 * layer : 2 * layer + 2] == [True, True]
    assert not any(changed[2 * layer + 2 :])


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_a_tiny_eps_gives_the_clean_loss_in_every_stage(stage: int, clip: bool) -> None:
    _, batch = setting(stage, clip, eps=1e-8)
    loss = Colt(stages=3, mix_steps=2, stability=1.0, attack=SMALL).loss(batch).loss
    torch.testing.assert_close(loss, batch.clean_loss, rtol=0, atol=1e-5)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_the_adversary_beats_the_clean_loss_and_grows_with_eps(stage: int, clip: bool) -> None:
    method = Colt(stages=3, mix_steps=2, attack=STRONG)
    small, large = (method.loss(setting(stage, clip, eps)[1]).loss for eps in (0.02, 0.1))
    clean = setting(stage)[1].clean_loss
    assert clean < small < large


def test_zonotopes_are_worse_than_all_images_that_they_stand_for() -> None:
    """100 images of the eps-box have no larger loss than the strong adversary finds behind each ReLU."""
    for stage in (5, 8):
        _, batch = setting(stage)
        loss = Colt(stages=3, mix_steps=2, eps_growth=1.0, attack=STRONG).loss(batch).loss
        for seed in range(100):
            share = random(*batch.images.shape, seed=seed)
            share = share.round() if seed % 2 else share
            inside = batch.graph(batch.images + EPS * (2 * share - 1))
            assert F.cross_entropy(inside, batch.labels) <= loss


def test_images_in_another_order_have_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the same random start per image."""
    _, batch = setting(8)
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    noise = 2 * random(6, SHAPE[0] * 25 + 36 + 6, seed=4) - 1
    losses = []
    for index in (torch.arange(6), order):
        start = noise[index]
        monkeypatch.setattr("citrus.methods.colt.uniform", lambda *_, start=start: start)
        turned = replace(batch, images=batch.images[index], labels=batch.labels[index])
        losses.append(Colt(stages=3, mix_steps=2, attack=SMALL).loss(turned).loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=1e-12)


# -------------------------------------------------------------------------------------------------- the stages


def test_stages_are_equally_long_and_each_starts_with_the_loss_of_the_one_before() -> None:
    method = Colt(stages=3, mix=0.3, mix_steps=4)
    found = [method.stage(step / 300) for step in range(301)]
    assert found == sorted(found)
    assert set(found) == set(range(15))
    assert [found.count(s) for s in range(14)] == pytest.approx([7.5, 7.5, 7.5, 7.5, 70] * 2 + [7.5] * 4, abs=1)
    assert method.stage(1.0) == 14
    assert [method.stage(x) for x in (0, 1 / 3 + 1e-9, 2 / 3 + 1e-9)] == [0, 5, 10]


def test_stages_without_transition() -> None:
    method = Colt(stages=2, mix=0.0, mix_steps=1)
    assert [method.stage(x) for x in (0.0, 0.49, 0.51, 1.0)] == [1, 1, 3, 3]
    whole = Colt(stages=2, mix=1.0, mix_steps=2)
    assert [whole.stage(x) for x in (0.0, 0.26, 0.49, 0.5, 0.76, 1.0)] == [0, 1, 1, 3, 4, 5]


def test_in_training_the_first_layer_stands_still_from_the_second_stage_on() -> None:
    config = TrainConfig(
        data="tiny",
        network="smallcnn",
        method=Colt(stages=2, mix=0.5, mix_steps=1, attack=Ascent(steps=1, step_size=0.5), l1=1e-3),
        eps=0.05,
        epochs=4,
        batch_size=10,
        init="default",
    )
    trainer = Trainer(config, tiny_splits(40))
    seen = [[p.detach().clone() for p in trainer.network.parameters()] for _ in trainer.epochs()]
    first = [not torch.equal(seen[i][0], seen[i + 1][0]) for i in range(3)]
    last = [not torch.equal(seen[i][-2], seen[i + 1][-2]) for i in range(3)]
    assert first == [True, False, False]
    assert last == [True, True, True]


# -------------------------------------------------------------------------------------------------- bad input


BAD = [
    (Colt(stages=0), "stages must be at least 1, got 0"),
    (Colt(mix_steps=0), "mix_steps must be at least 1, got 0"),
    (Colt(mix=1.5), r"mix must lie in \[0, 1\], got 1.5"),
    (Colt(mix=-0.1), "mix must lie in"),
    (Colt(mix=math.nan), "mix must lie in"),
    (Colt(eps_growth=0.0), "eps_growth must be larger than 0, got 0.0"),
    (Colt(eps_growth=math.nan), "eps_growth must be finite and larger than 0, got nan"),
    (Colt(stability_growth=-1.0), "stability_growth must be larger than 0, got -1.0"),
    (Colt(stability=-1.0), "stability must be at least 0, got -1.0"),
    (Colt(l1=math.nan), "l1 must be finite and at least 0, got nan"),
    (Colt(stability_images=11), r"must lie in 0\.\.10, the batch, got 11"),
    (Colt(stability_images=-1), "stability_images must be at least 0, got -1"),
]


@pytest.mark.parametrize(("method", "says"), BAD)
def test_bad_settings(method: Colt, says: str) -> None:
    with pytest.raises(CitrusError, match=says):
        method.check(10)


class Skip(nn.Module):
    """A shortcut around the first ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(50, 50), nn.Linear(50, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(x, 1)
        return self.second(torch.relu(torch.relu(self.first(x)) + x))


def test_networks_that_do_not_fit() -> None:
    _, plain = make_network(batch_norm=False)
    Colt(stages=3).check_graph(fold(plain))
    with pytest.raises(CitrusError, match="4 stages needs 3 ReLU layers, the network has 2"):
        Colt(stages=4).check_graph(fold(plain))
    _, normed = make_network(batch_norm=True)
    with pytest.raises(CitrusError, match="BatchNorm"):
        Colt(stages=2).check_graph(fold(normed))
    Colt(stages=1).check_graph(fold(normed))
    skip = fold(trace(Skip(), SHAPE))
    with pytest.raises(CitrusError, match="bypass"):
        Colt(stages=2).check_graph(skip)
    Colt(stages=1).check_graph(skip)
