"""TAPS and STAPS against a second implementation: one image, one class, one latent point at a time."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from support.steps import CLASSES, EPS, FEW_STEPS, SHAPE, gradients, make_batch, make_network, random
from support.steps import one_thread as one_thread
from torch import Tensor, nn

import citrus.methods.taps as module
from citrus.attacks import Ascent
from citrus.bounds import Box, margin_rows, relu_box, training_interval
from citrus.errors import CitrusError
from citrus.methods import IBP, SABR, STAPS, TAPS
from citrus.methods.taps import classifier, link
from citrus.networks import Graph, Trace, build, fold, graph, trace

STEPS = Ascent(steps=4, step_size=0.6, decay=0.5, decay_at=(0.5,))


def make_mlp(classes: int = CLASSES) -> tuple[nn.Sequential, Trace]:
    """Three hidden layers of 9, 8 and 7."""
    sizes = (50, 9, 8, 7, classes)
    linear = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    network = nn.Sequential(nn.Flatten(), *(m for layer in linear[:-1] for m in (layer, nn.ReLU())), linear[-1])
    traced = trace(network, SHAPE)
    network.double()
    with torch.no_grad():
        for i, parameter in enumerate(network.parameters()):
            parameter.copy_(random(*parameter.shape, seed=40 + i) * 2 - 1)
    return network, traced


def run(layers: list[nn.Linear], x: Tensor) -> Tensor:
    for layer in layers[:-1]:
        x = (layer.weight @ x + layer.bias).relu()
    return layers[-1].weight @ x + layers[-1].bias


def widen(layer: nn.Linear, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    positive, negative = layer.weight.clamp(min=0), layer.weight.clamp(max=0)
    return positive @ lower + negative @ upper + layer.bias, positive @ upper + negative @ lower + layer.bias


def relu(lower: Tensor, upper: Tensor, shrink: float) -> tuple[Tensor, Tensor]:
    """Bounds behind a ReLU; the upper one is multiplied by `shrink` where the ReLU may be on or off."""
    return lower.relu(), torch.where((lower < 0) & (upper > 0), shrink * upper, upper.relu())


def slow_margins(
    layers: list[nn.Linear], lower: Tensor, upper: Tensor, label: int, method: TAPS, starts: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Interval bounds and attacked estimates of the margins of one image, class by class."""
    split, c = len(layers) - 1 - method.classifier_relus, method.slack
    for layer in layers[:split]:
        lower, upper = relu(*widen(layer, lower, upper), method.shrink)
    low, high = lower, upper
    for layer in layers[split:-1]:
        low, high = relu(*widen(layer, low, high), method.shrink)
    bounded, attacked = [], []
    for j in (j for j in range(CLASSES) if j != label):
        row, bias = (t[label] - t[j] for t in (layers[-1].weight, layers[-1].bias))
        bounded.append(row.clamp(min=0) @ low + row.clamp(max=0) @ high + bias)
        point = slow_search(layers[split:], lower.detach(), upper.detach(), label, j, starts[len(attacked)])
        d = c * (upper - lower).detach()
        to_upper = ((point - (upper.detach() - d)) / d).clamp(0, 1)
        to_lower = (((lower.detach() + d) - point) / d).clamp(0, 1)
        flat = d == 0  # switched-off features: nothing moves them
        to_upper, to_lower = to_upper.masked_fill(flat, 0.5), to_lower.masked_fill(flat, 0.5)
        moving = point + to_upper * (upper - upper.detach()) + to_lower * (lower - lower.detach())
        scores = run(layers[split:], moving)
        attacked.append(scores[label] - scores[j])
    return bounded, attacked


def slow_search(layers: list[nn.Linear], lower: Tensor, upper: Tensor, label: int, j: int, start: Tensor) -> Tensor:
    """The worst of the points that four sign steps of 0.6, 0.6, 0.3 and 0.3 half widths visit."""
    point = (lower + upper) / 2 + start * (upper - lower) / 2
    best, least = point, math.inf
    for size in (0.6, 0.6, 0.3, 0.3, 0.0):
        point = point.clone().requires_grad_()
        scores = run(layers, point)
        margin = scores[label] - scores[j]
        (slope,) = torch.autograd.grad(margin, point)
        if margin.item() < least:
            best, least = point.detach(), margin.item()
        point = (point.detach() - size * (upper - lower) / 2 * slope.sign()).clamp(lower, upper)
    return best


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("relus", [1, 2])
@pytest.mark.parametrize(("scale", "slack", "shrink"), [(5.0, 0.5, 1.0), (1.0, 0.25, 1.0), (2.0, 1.0, 0.8)])
def test_taps_equals_the_plain_loops(
    relus: int, scale: float, slack: float, shrink: float, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, traced = make_mlp()
    batch = make_batch(traced, clip=clip)
    layers = [m for m in network if isinstance(m, nn.Linear)]
    width = layers[-1 - relus].in_features
    starts = 2 * random(6 * (CLASSES - 1), width, seed=5) - 1
    monkeypatch.setattr(module, "uniform", lambda *_: starts)
    taps = TAPS(classifier_relus=relus, gradient_scale=scale, slack=slack, shrink=shrink, latent_attack=STEPS)
    loss = taps.loss(batch).loss

    ibp = attack = torch.zeros((), dtype=torch.float64)
    for i, (x, label) in enumerate(zip(batch.images, batch.labels.tolist(), strict=True)):
        lower, upper = x.flatten() - EPS, x.flatten() + EPS
        if clip:
            lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
        own = starts[i * (CLASSES - 1) : (i + 1) * (CLASSES - 1)]
        bounded, attacked = slow_margins(layers, lower, upper, label, taps, own)
        ibp = ibp + (1 + sum((-m).exp() for m in bounded)).log() / 6
        attack = attack + (1 + sum((-m).exp() for m in attacked)).log() / 6
    torch.testing.assert_close(loss, ibp * attack, rtol=1e-10, atol=1e-10)
    expected = zip(gradients(network, ibp), gradients(network, attack), strict=True)
    for found, (a, b) in zip(gradients(network, loss), expected, strict=True):
        torch.testing.assert_close(found, attack * a + scale * ibp * b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("shrink", [1.0, 0.8])
def test_with_nothing_to_attack_taps_is_ibp_and_staps_is_sabr(clip: bool, shrink: float) -> None:
    network, traced = make_network()
    sabr = SABR(tau_ratio=0.4, shrink=shrink, attack=FEW_STEPS)
    staps = STAPS(tau_ratio=0.4, shrink=shrink, attack=FEW_STEPS)
    pairs = [(replace(staps, classifier_relus=0), sabr, False), (staps, sabr, True)]
    if shrink == 1:
        pairs += [(TAPS(classifier_relus=0), IBP(), False), (TAPS(), IBP(), True)]
    for taps, plain, ramping in pairs:
        one, two = (m.loss(replace(make_batch(traced, clip=clip), ramping=ramping)) for m in (taps, plain))
        assert torch.equal(one.loss, two.loss)
        for a, b in zip(gradients(network, one.loss), gradients(network, two.loss), strict=True):
            assert torch.equal(a, b)
        assert one.boxes
        assert two.boxes
        assert torch.equal(one.boxes.input_radius, two.boxes.input_radius)


@pytest.mark.parametrize("clip", [False, True])
def test_staps_on_the_whole_eps_box_is_taps(clip: bool) -> None:
    _, traced = make_network()
    taps, staps = TAPS(latent_attack=STEPS), STAPS(tau_ratio=1.0, latent_attack=STEPS)
    one, two = (method.loss(make_batch(traced, clip=clip)).loss for method in (taps, staps))
    assert torch.equal(one, two)
    assert one != staps.loss(replace(make_batch(traced, clip=clip), ramping=True)).loss


def features_of(plain: Graph, images: Tensor, labels: Tensor, relus: int, shrink: float = 1.0) -> tuple[Box, Tensor]:
    """The box that enters the classifier, and the interval bounds of the margins."""
    bounds = training_interval(plain, images, EPS, margin_rows(labels, plain.classes, images.dtype), shrink)
    box = relu_box(bounds.pre_activations[-relus - 1], shrink)
    return Box(box.centre, box.radius.expand_as(box.centre)), bounds.lower


@pytest.mark.parametrize("relus", [1, 2])
def test_attacked_margins_respect_the_interval_bound_and_beat_random_corners(relus: int) -> None:
    _, traced = make_mlp()
    batch = make_batch(traced)
    box, lower = features_of(batch.graph, batch.images, batch.labels, relus)
    attack = Ascent(steps=20, step_size=0.4, decay=0.1, decay_at=(0.7,))
    found = TAPS(classifier_relus=relus, latent_attack=attack).attacked_margins(batch, box)
    assert found.shape == (6, CLASSES - 1)
    assert (found >= lower - 1e-9).all()
    assert (found > lower + 1e-3).any()
    rows = margin_rows(batch.labels, CLASSES, torch.float64)
    rest = classifier(batch.graph, relus)
    beaten = torch.zeros_like(found)
    for seed in range(100):
        share = 2 * random(*box.centre.shape, seed=seed).round() - 1
        margin = torch.einsum("brc,bc->br", rows, rest(box.centre + share * box.radius))
        assert (margin >= lower - 1e-9).all()
        beaten += margin < found
    assert beaten.mean() < 1, "no random corner does better, as a rule"


def test_where_the_classifier_is_linear_the_attack_is_exact_and_so_is_its_gradient() -> None:
    network, traced = make_mlp()
    with torch.no_grad():
        network[5].bias += 100  # the last hidden layer is always on
    batch = make_batch(traced)
    first, second, third, last = (m for m in network if isinstance(m, nn.Linear))
    taps = TAPS(latent_attack=Ascent(steps=2, step_size=2.0))
    box, _ = features_of(batch.graph, batch.images, batch.labels, 1)
    found = taps.attacked_margins(batch, box)
    rows = margin_rows(batch.labels, CLASSES, torch.float64)
    matrix = rows @ last.weight @ third.weight
    exact = torch.einsum("brf,bf->br", matrix, box.centre) - torch.einsum("brf,bf->br", matrix.abs(), box.radius)
    exact = exact + rows @ (last.weight @ third.bias + last.bias)
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    layers = [first.weight, second.bias, third.weight, last.bias]
    one, two = (torch.autograd.grad(m.square().sum(), layers, retain_graph=True) for m in (found, exact))
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_the_link_by_hand() -> None:
    """The box [1, 3] and points at 1, 1.5, 2, 2.75 and 3; a box without width; slack 0.5 and 0.25."""
    lower = torch.tensor([[1.0] * 5 + [4.0]], requires_grad=True)
    upper = torch.tensor([[3.0] * 5 + [4.0]], requires_grad=True)
    share = torch.tensor([[[-1.0, -0.5, 0.0, 0.75, 1.0, 0.3]]])
    for slack, to_lower, to_upper in (
        (0.5, [1, 0.5, 0, 0, 0, 0.5], [0, 0, 0, 0.75, 1, 0.5]),
        (0.25, [1, 0, 0, 0, 0, 0.5], [0, 0, 0, 0.5, 1, 0.5]),
        (1.0, [1, 0.75, 0.5, 0.125, 0, 0.5], [0, 0.25, 0.5, 0.875, 1, 0.5]),
    ):
        points = link(Box((lower + upper) / 2, (upper - lower) / 2), share, slack)
        assert points.flatten().tolist() == pytest.approx([1, 1.5, 2, 2.75, 3, 4])
        down, up = torch.autograd.grad(points.sum(), [lower, upper])
        centre, width = down + up, up - down
        assert centre[0].tolist() == pytest.approx([a + b for a, b in zip(to_lower, to_upper, strict=True)])
        assert width[0, :5].tolist() == pytest.approx([b - a for a, b in zip(to_lower[:5], to_upper[:5], strict=True)])


@pytest.mark.parametrize("method", [TAPS(latent_attack=STEPS), STAPS(latent_attack=STEPS, attack=FEW_STEPS)])
def test_two_classes_have_one_margin(method: TAPS) -> None:
    network, traced = make_mlp(classes=2)
    plain = make_batch(make_mlp()[1])
    batch = replace(plain, labels=plain.labels % 2, graph=fold(traced))
    method.check_graph(batch.graph)
    loss = method.loss(batch).loss
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in gradients(network, loss))
    box, lower = features_of(batch.graph, batch.images, batch.labels, 1)
    assert method.attacked_margins(batch, box).shape == lower.shape == (6, 1)


def residual() -> Graph:
    """relu -> (linear -> relu -> linear) + skip -> relu -> linear."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = nn.Linear(50, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x.flatten(1)).relu()
            return self.d((self.c(self.b(x).relu()) + x).relu())

    return graph(Net().eval(), SHAPE)


def test_the_split_may_go_around_a_residual_block_and_not_through_it() -> None:
    plain = residual()
    x = random(3, *SHAPE).float()
    for relus in (0, 2):
        rest = classifier(plain, relus)
        values = [x]
        for node in plain.nodes[: len(plain.nodes) - len(rest.nodes)]:
            values.append(node.op(*(values[i] for i in node.inputs)))
        torch.testing.assert_close(rest(values[-1]), plain(x))
        TAPS(classifier_relus=relus).check_graph(plain)
    with pytest.raises(CitrusError, match="classifier_relus 1 would split the network within a residual block"):
        TAPS(classifier_relus=1).check_graph(plain)


@pytest.mark.parametrize("kind", [TAPS, STAPS])
def test_a_split_outside_of_the_network_is_refused(kind: type[TAPS]) -> None:
    plain = graph(build("cnn7", (1, 28, 28), 10).eval(), (1, 28, 28))
    for relus in range(6):
        kind(classifier_relus=relus).check_graph(plain)
        assert sum(type(node.op).__name__ == "Relu" for node in classifier(plain, relus).nodes) == relus
    assert classifier(plain, 1).input_shape == (128, 14, 14)
    assert classifier(plain, 5).input_shape == (64, 28, 28)
    for relus in (6, 100):
        with pytest.raises(
            CitrusError, match=f"{relus} is too many for a network with 6 ReLU layers: .* 5 is the most"
        ):
            kind(classifier_relus=relus).check_graph(plain)
    linear = graph(nn.Sequential(nn.Flatten(), nn.Linear(50, 4)).eval(), SHAPE)
    kind(classifier_relus=0).check_graph(linear)
    with pytest.raises(CitrusError, match="network with 0 ReLU layers"):
        kind(classifier_relus=1).check_graph(linear)
