"""Interval bounds: numbers by hand, soundness on sampled points for every layer, and the contract every bound keeps."""

import re

import pytest
import torch
import torch.nn.functional as F
from support.helpers import (
    CLASSES,
    PIXELS,
    SHAPE,
    ZOO,
    Case,
    case_named,
    folded,
    head,
    images,
    run_with_pre_activations,
    samples_in_box,
)
from torch import Tensor, nn

from citrus.bounds import Bounds, Box, interval, margin_loss, margin_rows, margins, training_interval, wrong_labels
from citrus.bounds.interval import relu_box
from citrus.errors import CitrusError
from citrus.networks import Graph, Normalize, fold, graph, trace

zoo = pytest.mark.parametrize("case", ZOO, ids=str)
CONV = case_named("conv")
RADIUS = 0.05
DOUBLE = torch.float64


def radii(seed: int = 3, dtype: torch.dtype = DOUBLE, count: int = 1) -> Tensor:
    """A radius per pixel, some of them zero."""
    radius = images(count, dtype, seed) * 2 * RADIUS
    return torch.where(radius < RADIUS / 4, torch.zeros_like(radius), radius)


def rows(count: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    return margin_rows(torch.arange(count) % CLASSES, CLASSES, dtype)


def everything(bounds: Bounds) -> list[tuple[Tensor, Tensor]]:
    """Lower and upper of the rows and of each ReLU's argument."""
    return [(bounds.lower, bounds.upper), *((box.lower, box.upper) for box in bounds.pre_activations)]


# By hand: h = relu(x1 - x2 + bias, x1 + 2 x2 + 1), scores (2 h1 - h2, h1 + h2 - 1), at (1/2, 1/4) with radius 1/4.


def network_2_2_2(first_bias: float) -> Graph:
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).eval()
    network.load_state_dict(
        {
            "1.weight": torch.tensor([[1.0, -1.0], [1.0, 2.0]]),
            "1.bias": torch.tensor([first_bias, 1.0]),
            "3.weight": torch.tensor([[2.0, -1.0], [1.0, 1.0]]),
            "3.bias": torch.tensor([0.0, -1.0]),
        }
    )
    return graph(network, (1, 1, 2))


CENTRE = torch.tensor([0.5, 0.25]).view(1, 1, 1, 2)


def assert_bounds(found: Bounds | Box, lower: list[list[float]], upper: list[list[float]]) -> None:
    """Next to these numbers and never inside of them: what may be rounded is in the bounds."""
    for values, wanted, sign in ((found.lower, lower, 1), (found.upper, upper, -1)):
        assert (sign * values.double() <= sign * torch.tensor(wanted, dtype=DOUBLE)).all()
        torch.testing.assert_close(values, torch.tensor(wanted), rtol=1e-6, atol=1e-6)


def test_crossing_and_active_by_hand() -> None:
    bounds = interval(network_2_2_2(0.0), CENTRE, 0.25)
    (box,) = bounds.pre_activations
    assert box.centre.tolist() == [[0.25, 2.0]]
    assert_bounds(box, [[-0.25, 1.25]], [[0.75, 2.75]])
    # h1 in [0, 3/4], h2 in [5/4, 11/4]
    assert_bounds(bounds, [[-2.75, 0.25]], [[0.25, 2.5]])


def test_dead_by_hand() -> None:
    bounds = interval(network_2_2_2(-1.0), CENTRE, 0.25)
    assert_bounds(bounds.pre_activations[0], [[-1.25, 1.25]], [[-0.25, 2.75]])
    # h1 = 0, so the scores are -h2 and h2 - 1
    assert_bounds(bounds, [[-2.75, 0.25]], [[-1.25, 1.75]])


def test_elision_by_hand() -> None:
    labels = torch.tensor([1])
    bounds = interval(network_2_2_2(0.0), CENTRE, 0.25, margin_rows(labels, 2))
    # score 2 - score 1 = -h1 + 2 h2 - 1: proved, although the scores' own intervals touch (1/4 - 1/4 = 0)
    assert_bounds(bounds, [[0.75]], [[4.5]])
    opposite = interval(network_2_2_2(0.0), CENTRE, 0.25, margin_rows(1 - labels, 2))
    assert_bounds(opposite, [[-4.5]], [[-0.75]])


def test_shrink_by_hand() -> None:
    bounds = training_interval(network_2_2_2(0.0), CENTRE, 0.25, shrink=0.8)
    # Only the crossing h1 shrinks: [0, 0.6] instead of [0, 0.75]
    torch.testing.assert_close(bounds.lower, torch.tensor([[-2.75, 0.25]]))
    torch.testing.assert_close(bounds.upper, torch.tensor([[-0.05, 2.35]]))
    assert bounds.pre_activations[0].upper.tolist() == [[0.75, 2.75]]  # what enters the ReLU is not shrunk
    active_and_dead = training_interval(network_2_2_2(-1.0), CENTRE, 0.25, shrink=0.8)
    assert active_and_dead.upper.tolist() == [[-1.25, 1.75]]


def last_box(*layers: nn.Module, centre: Tensor, radius: Tensor | float) -> Bounds:
    return interval(graph(nn.Sequential(*layers, nn.Flatten()).eval(), tuple(centre.shape[1:])), centre, radius)


def test_convolution_by_hand() -> None:
    conv = nn.Conv2d(1, 1, 2, bias=False)
    conv.weight.data = torch.tensor([[[[1.0, -1.0], [0.0, 2.0]]]])
    bounds = last_box(conv, centre=torch.arange(9.0).view(1, 1, 3, 3), radius=0.5)
    # a - b + 2 d on a 3 x 3 image that counts up: 7, 9, 13, 15, each +- 4 / 2
    assert_bounds(bounds, [[5.0, 7.0, 11.0, 13.0]], [[9.0, 11.0, 15.0, 17.0]])


def test_average_pooling_by_hand() -> None:
    bounds = last_box(nn.AvgPool2d(2, 2, padding=1), centre=torch.full((1, 1, 2, 2), 4.0), radius=1.0)
    assert_bounds(bounds, [[0.75] * 4], [[1.25] * 4])  # one pixel and three zeros in each window


def test_batch_norm_with_negative_factor_by_hand() -> None:
    bn = nn.BatchNorm2d(1, eps=0.0)
    nn.init.constant_(bn.weight, -2.0)
    bounds = last_box(bn, centre=torch.full((1, 1, 1, 2), 3.0), radius=torch.tensor([0.0, 0.5]).view(1, 1, 1, 2))
    assert_bounds(bounds, [[-6.0, -7.0]], [[-6.0, -5.0]])


def test_normalisation_by_hand() -> None:
    bounds = last_box(Normalize((0.5,), (0.25,)), centre=torch.full((1, 1, 1, 1), 0.75), radius=0.125)
    assert_bounds(bounds, [[0.5]], [[1.5]])


def test_addition_adds_radii() -> None:
    class Minus(nn.Module):
        """x + (-x): intervals do not know that the branches belong together."""

        def __init__(self) -> None:
            super().__init__()
            self.negative = nn.Conv2d(1, 1, 1, bias=False)
            nn.init.constant_(self.negative.weight, -1.0)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.negative(x)

    bounds = last_box(Minus(), centre=torch.ones(1, 1, 1, 1), radius=0.25)
    assert_bounds(bounds, [[-0.5]], [[0.5]])


# Soundness: no sampled point leaves its box, at the output and before every ReLU.


def worst_escape(case: Case, dtype: torch.dtype) -> float:
    """How far a sampled value lies outside its bounds, relative to the bound's size; negative if none does."""
    network, centre = case.build(dtype), images(1, dtype)
    radius = radii(dtype=dtype)
    with torch.no_grad():
        bounds = interval(folded(case, dtype), centre, radius)
        margin = interval(folded(case, dtype), centre, radius, rows(1, dtype))
        output, entering = run_with_pre_activations(network, samples_in_box(centre, radius, 10_000))
    sampled = [output, *entering, margins(output, torch.zeros(len(output), dtype=torch.int64))]
    boxes = [*everything(bounds), (margin.lower, margin.upper)]
    escapes = []
    for values, (lower, upper) in zip(sampled, boxes, strict=True):
        scale = 1 + torch.maximum(lower.abs(), upper.abs())
        escapes.append(((lower - values) / scale).max().item())
        escapes.append(((values - upper) / scale).max().item())
    return max(escapes)


@zoo
def test_contains_10000_samples(case: Case) -> None:
    assert worst_escape(case, torch.float32) <= 1e-5


@zoo
def test_contains_10000_samples_in_float64(case: Case) -> None:
    assert worst_escape(case, DOUBLE) <= 1e-12


@zoo
def test_contains_samples_with_batch_statistics(case: Case) -> None:
    traced, batch = trace(case.build(DOUBLE), SHAPE), images(16, DOUBLE)
    plain = fold(traced, traced.forward_with_statistics(batch)[1])
    bounds = interval(plain, batch[:1], radii())
    values = plain(samples_in_box(batch[:1], radii(), 1000))
    assert (values >= bounds.lower - 1e-12).all()
    assert (values <= bounds.upper + 1e-12).all()


@pytest.mark.parametrize("case", [c for c in ZOO if c.name != "avgpool padding"], ids=str)
def test_exact_through_one_affine_layer(case: Case) -> None:
    """The box that enters the first ReLU is attained, at the corner to which the gradient points."""
    network, centre, radius = case.build(DOUBLE), images(1, DOUBLE), radii()
    bounds = interval(folded(case, DOUBLE), centre, radius)
    lower, upper = everything(bounds)[1 if case.relus else 0]
    place = int((upper - lower).flatten().argmax())

    def values(x: Tensor) -> Tensor:
        output, entering = run_with_pre_activations(network, x)
        return (entering[0] if entering else output).flatten(1)[:, place]

    # Affine in x, so differences along the axes are the gradient.
    axes = torch.eye(PIXELS, dtype=DOUBLE).view(PIXELS, *SHAPE)
    corner = radius * (values(centre + axes) - values(centre)).sign().view(1, *SHAPE)
    torch.testing.assert_close(values(centre + corner), upper.flatten()[place, None], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(values(centre - corner), lower.flatten()[place, None], rtol=1e-9, atol=1e-9)


# The contract


@zoo
def test_radius_zero_is_the_network_itself(case: Case) -> None:
    plain, x = folded(case), images(3)
    bounds = interval(plain, x, 0.0)
    scores = plain.double()(x.double())
    assert (bounds.lower <= scores).all()
    assert (bounds.upper >= scores).all()
    torch.testing.assert_close((bounds.lower, bounds.upper), (scores.float(), scores.float()), rtol=1e-5, atol=1e-5)
    entering = run_with_pre_activations(case.build(), x)[1]
    for box, values in zip(bounds.pre_activations, entering, strict=True):
        torch.testing.assert_close(box.lower, values, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(box.upper, values, rtol=1e-5, atol=1e-5)
    labels = torch.arange(3)
    elided = interval(plain, x, 0.0, margin_rows(labels, CLASSES))
    torch.testing.assert_close(elided.lower, margins(plain(x), labels), rtol=1e-5, atol=1e-5)


@zoo
def test_larger_radius_contains_smaller(case: Case) -> None:
    plain, x = folded(case, DOUBLE), images(2, DOUBLE)
    for spec in (None, rows(2)):
        inner, outer = (interval(plain, x, radius, spec) for radius in (radii(), radii() + images(1, DOUBLE, 5) / 50))
        for (low, high), (lower, upper) in zip(everything(inner), everything(outer), strict=True):
            assert (low <= high).all()
            assert (lower <= low + 1e-12).all()
            assert (upper >= high - 1e-12).all()


@zoo
@pytest.mark.parametrize("shared", [True, False])
def test_batch_equals_stacked_singles(case: Case, shared: bool) -> None:
    plain, x = folded(case, DOUBLE), images(3, DOUBLE)
    radius = radii() if shared else radii(count=3)
    together = everything(interval(plain, x, radius, rows(3)))
    for i in range(3):
        own = radius if shared else radius[i : i + 1]
        single = everything(interval(plain, x[i : i + 1], own, rows(3)[i : i + 1]))
        for (low, high), (lower, upper) in zip(together, single, strict=True):
            torch.testing.assert_close(low[i : i + 1], lower, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(high[i : i + 1], upper, rtol=1e-12, atol=1e-12)


@zoo
def test_elided_margins_are_at_least_as_tight(case: Case) -> None:
    plain, x, labels = folded(case, DOUBLE), images(3, DOUBLE), torch.arange(3)
    scores = interval(plain, x, radii())
    elided = interval(plain, x, radii(), margin_rows(labels, CLASSES, DOUBLE))
    wrong = wrong_labels(labels, CLASSES)
    assert (elided.lower >= scores.lower.gather(1, labels[:, None]) - scores.upper.gather(1, wrong) - 1e-12).all()
    assert (elided.upper <= scores.upper.gather(1, labels[:, None]) - scores.lower.gather(1, wrong) + 1e-12).all()


@zoo
def test_every_pre_activation_is_there(case: Case) -> None:
    plain, x = folded(case), images(2)
    bounds = interval(plain, x, RADIUS, rows(2, torch.float32))
    shapes = [node.shape for node in plain.nodes if type(node.op).__name__ == "Relu"]
    assert len(bounds.pre_activations) == len(shapes) == case.relus
    for box, shape in zip(bounds.pre_activations, shapes, strict=True):
        assert box.lower.shape == box.upper.shape == (2, *shape)
    assert bounds.lower.shape == bounds.upper.shape == (2, CLASSES - 1)


@zoo
def test_gradients_equal_finite_differences(case: Case) -> None:
    """In the weights, the centre and the radius, along random directions."""
    network, centre, radius = case.build(DOUBLE), images(2, DOUBLE), images(2, DOUBLE, 4) * RADIUS + 0.01
    inputs = [centre, radius, *network.parameters()]
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, 2, CLASSES - 1, generator=generator, dtype=DOUBLE)
    traced = trace(network, SHAPE)

    def value() -> Tensor:
        bounds = interval(fold(traced), centre, radius, rows(2))
        return (bounds.lower * weights[0] + bounds.upper * weights[1]).sum()

    for tensor in inputs:
        tensor.requires_grad_()
    gradients = torch.autograd.grad(value(), inputs)
    assert all(gradient.isfinite().all() for gradient in gradients)
    step = 1e-6
    with torch.no_grad():
        for _ in range(2):
            directions = [torch.randn(t.shape, generator=generator, dtype=DOUBLE) for t in inputs]
            ends = []
            for sign in (1, -2):  # forward one step, then back two
                for tensor, direction in zip(inputs, directions, strict=True):
                    tensor += sign * step * direction
                ends.append(value().item())
            for tensor, direction in zip(inputs, directions, strict=True):
                tensor += step * direction
            slope = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_gradients_are_finite_at_radius_zero_and_on_kinks() -> None:
    network = CONV.build()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    centre = images(2).requires_grad_()
    bounds = interval(graph(network, SHAPE), centre, 0.0, rows(2, torch.float32))
    bounds.lower.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (centre, *network.parameters()))


# Radius


@pytest.mark.parametrize(
    "radius",
    [
        pytest.param(torch.tensor(RADIUS, dtype=DOUBLE), id="number"),
        pytest.param(torch.full((1, *SHAPE), RADIUS, dtype=DOUBLE), id="one image"),
        pytest.param(torch.full((3, *SHAPE), RADIUS, dtype=DOUBLE), id="all images"),
        pytest.param(torch.full(SHAPE, RADIUS, dtype=DOUBLE), id="image without batch"),
        pytest.param(torch.full((1, 2, 1, 1), RADIUS, dtype=DOUBLE), id="per channel"),
        pytest.param(torch.full((2, 1, 1), RADIUS, dtype=DOUBLE), id="per channel without batch"),
        pytest.param(torch.full((3, 1, 1, 1), RADIUS, dtype=DOUBLE), id="per image"),
        pytest.param(torch.full((1, 1, 6, 6), RADIUS, dtype=DOUBLE), id="per pixel of all channels"),
    ],
)
@pytest.mark.parametrize(
    "name", ["conv stride padding", "normalize padded conv bn", "avgpool first", "residual", "mlp"]
)
def test_every_form_of_radius_means_the_same_or_is_refused(name: str, radius: Tensor) -> None:
    """A radius that broadcasts to the images must never be read as a smaller image."""
    plain, x = folded(case_named(name), DOUBLE), images(3, DOUBLE)
    expected = interval(plain, x, RADIUS)
    try:
        bounds = interval(plain, x, radius)
    except CitrusError:
        assert radius.shape not in {(), (1, *SHAPE), (3, *SHAPE)}
        return
    torch.testing.assert_close(bounds.lower, expected.lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bounds.upper, expected.upper, rtol=1e-12, atol=1e-12)


def test_per_image_radius_of_grey_images() -> None:
    """(n, 1, 1, 1) has the right number of channels for a padded convolution: only a check can tell."""
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), *head(PIXELS)).eval()
    plain, x = graph(network, (1, 6, 6)), images(2, shape=(1, 6, 6))
    bounds = interval(plain, x, torch.full((2, 1, 1, 1), 0.1))
    torch.testing.assert_close(bounds.lower, interval(plain, x, 0.1).lower)


def test_negative_radius_tensor_never_certifies() -> None:
    x = images(2)
    radius = torch.full_like(x, 0.01)
    radius[0, 0, 0, 0] = -5.0
    bounds = interval(folded(CONV), x, radius)
    assert bounds.lower[0].isnan().any()
    assert not bool((bounds.lower[0] > 0).all())
    assert bounds.lower[1].isfinite().all()


def test_images_of_another_shape_are_an_error() -> None:
    with pytest.raises(CitrusError, match="takes images of shape"):
        interval(folded(CONV), torch.rand(2, 1, 3, 3), 0.1)


@pytest.mark.parametrize("radius", [-0.1, -1, float("nan")])
def test_negative_radius_is_an_error(radius: float) -> None:
    with pytest.raises(CitrusError, match=re.escape(f"must not be negative, got {radius}")):
        interval(folded(CONV), images(1), radius)


def test_integer_radius() -> None:
    plain, x = folded(CONV), images(1)
    assert torch.equal(interval(plain, x, 1).lower, interval(plain, x, 1.0).lower)


# NaN fails closed


def certified(plain: Graph, x: Tensor, labels: Tensor, radius: Tensor | float = 0.0) -> bool:
    bounds = interval(plain, x, radius, margin_rows(labels, CLASSES))
    return bool((bounds.lower > 0).all())


@zoo
def test_nan_never_certifies(case: Case) -> None:
    network, x = case.build(), images(1)
    labels = network(x).argmax(1)
    assert certified(folded(case), x, labels)  # at radius 0 the network's own answer is certain
    broken = x.clone()
    broken[0, 0, 0, 0] = float("nan")
    assert not certified(folded(case), broken, labels)
    radius = torch.zeros_like(x)
    radius[0, 0, 0, 0] = float("nan")
    assert not certified(folded(case), x, labels, radius)
    traced = trace(network, SHAPE)
    for parameter in network.parameters():
        with torch.no_grad():
            kept = parameter.view(-1)[-1].item()
            parameter.view(-1)[-1] = float("nan")
            assert not certified(fold(traced), x, labels)
            parameter.view(-1)[-1] = kept


def test_negative_variance_never_certifies() -> None:
    network = nn.Sequential(nn.BatchNorm2d(2), *head(PIXELS)).eval()
    network[0].running_var -= 2
    assert not certified(graph(network, SHAPE), images(1), torch.tensor([0]))


def test_shrink_of_nan_stays_nan() -> None:
    assert training_interval(folded(CONV), images(1) * float("nan"), 0.1, shrink=0.8).lower.isnan().all()


# Margins


def test_wrong_labels_and_rows_by_hand() -> None:
    labels = torch.tensor([0, 2, 1])
    assert wrong_labels(labels, 3).tolist() == [[1, 2], [0, 1], [0, 2]]
    assert margin_rows(labels, 3).tolist() == [
        [[1, -1, 0], [1, 0, -1]],
        [[-1, 0, 1], [0, -1, 1]],
        [[-1, 1, 0], [0, 1, -1]],
    ]
    assert margin_rows(labels, 3, DOUBLE).dtype == DOUBLE


def test_margins_by_hand_and_by_rows() -> None:
    logits, labels = torch.tensor([[3.0, 1.0, 7.0], [3.0, 1.0, 7.0]]), torch.tensor([0, 2])
    assert margins(logits, labels).tolist() == [[2.0, -4.0], [4.0, 6.0]]
    assert torch.equal(margins(logits, labels), torch.einsum("brc,bc->br", margin_rows(labels, 3), logits))


def test_margin_loss_is_cross_entropy_of_the_margins() -> None:
    logits = torch.randn(50, 7, generator=torch.Generator().manual_seed(0), dtype=DOUBLE) * 3
    labels = torch.arange(50) % 7
    expected = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(margin_loss(margins(logits, labels)), expected)
    assert margin_loss(torch.zeros(1, 1)).item() == pytest.approx(0.6931472)  # log 2
    assert margin_loss(torch.full((1, 3), -1000.0)).item() == pytest.approx(1000 + 1.0986123)  # no overflow


def test_rows_need_not_be_margins() -> None:
    """Any linear function of the scores can be asked about; the identity gives the scores."""
    plain, x = folded(CONV, DOUBLE), images(2, DOUBLE)
    identity = torch.eye(CLASSES, dtype=DOUBLE).expand(2, -1, -1)
    plain, asked = interval(plain, x, RADIUS), interval(plain, x, RADIUS, identity)
    torch.testing.assert_close(plain.lower, asked.lower)
    torch.testing.assert_close(plain.upper, asked.upper)


# The box behind a ReLU


def test_relu_box_equals_relu_of_its_ends() -> None:
    """By hand, also where an end touches 0; and bit for bit what minimum and maximum give."""
    centre = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 0.0])
    box = relu_box(Box(centre, torch.tensor([1.0] * 7 + [0.0])))
    assert box.lower.tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
    assert box.upper.tolist() == [0, 0, 0.5, 1, 1.5, 2, 3, 0]
    noise = torch.Generator().manual_seed(0)
    centre, radius = torch.randn(1000, generator=noise), torch.rand(1000, generator=noise)
    half = ((centre + radius) / 2).relu()
    found, smaller = relu_box(Box(centre, radius)), torch.minimum(half, radius)
    assert torch.equal(found.radius, smaller)
    assert torch.equal(found.centre, torch.maximum(centre, smaller))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gradients_of_compiled_boxes_keep_the_layout_of_the_maps() -> None:
    """Channels side by side, as a GPU's convolutions want them: any other layout costs a copy of every map."""
    compiled = torch.compile(relu_box, backend="aot_eager_decomp_partition")
    c, r, weight = (torch.randn(3, 4, 5, 6).contiguous(memory_format=torch.channels_last) for _ in range(3))
    c.requires_grad_()
    r.requires_grad_()
    found = compiled(Box(c, r))
    for gradient in torch.autograd.grad((found.centre * weight + found.radius * weight**2).sum(), (c, r)):
        assert gradient.is_contiguous(memory_format=torch.channels_last)
