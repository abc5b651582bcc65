"""The checker's arithmetic against samples, against the bounds it does not share code with, and against fractions."""

from fractions import Fraction
from typing import get_args

import pytest
import torch
from support.helpers import CLASSES, DEEP, SHAPE, ZOO, Case, case_named, folded, images, samples_in_box
from torch import Tensor, nn

from citrus.bounds import LinearSettings, crown, interval, lower_planes, margin_rows, wrong_labels
from citrus.checker.arithmetic import Network, ReluLines, transposed
from citrus.checker.enclosure import Enclosure
from citrus.checker.planes import PlaneSource
from citrus.checker.proofs import Evaluator, Intermediate, Proof, Value
from citrus.networks import Graph, Normalize, graph
from citrus.networks.operations import Conv, Scale, window

EPS = 0.05


def double(case: Case) -> Graph:
    return folded(case, torch.float64)


@pytest.mark.parametrize("intermediate", get_args(Intermediate))
@pytest.mark.parametrize("case", [*ZOO, *DEEP], ids=str)
def test_boxes_and_planes_equal_the_bounds_in_double_precision(case: Case, intermediate: Intermediate) -> None:
    plain = double(case)
    x = images(2, torch.float64)
    y = plain(x).argmax(1)
    spec, wrong = margin_rows(y, CLASSES, torch.float64), wrong_labels(y, CLASSES)
    settings = LinearSettings(planes=True, intermediate=intermediate)
    bounds = crown(plain, x, EPS, spec, settings)
    assert bounds.lower_planes is not None
    by_interval = interval(plain, x, EPS, spec).lower
    network = Network(plain)
    slopes = [torch.rand_like(box.centre) for box in bounds.pre_activations]
    free = lower_planes(plain, x, torch.full_like(x[:1], EPS), spec, bounds.pre_activations, slopes)
    for i in range(2):
        boxes = Enclosure(network, x[i], EPS, Evaluator(network, x, y, EPS, intermediate).refined)
        for k, box in zip(network.relus, bounds.pre_activations, strict=True):
            value = network.nodes[k].inputs[0]
            torch.testing.assert_close(boxes.lower[value], box.lower[i], rtol=0, atol=1e-9)
            torch.testing.assert_close(boxes.upper[value], box.upper[i], rtol=0, atol=1e-9)
        flat = torch.cat([s[i].flatten() for s in slopes]) if slopes else torch.zeros(0, dtype=torch.float64)
        given = flat.expand(CLASSES - 1, -1)
        pairs = (
            (bounds.lower_planes, boxes.planes(int(y[i]), wrong[i])),
            (free, boxes.planes(int(y[i]), wrong[i], given)),
        )
        for planes, rows in pairs:
            torch.testing.assert_close(rows.values, planes.a[i].flatten(1), rtol=0, atol=1e-9)
            torch.testing.assert_close(rows.offset, planes.b[i], rtol=0, atol=1e-9)
            assert (rows.error > 0).all()
            assert (rows.error < 1e-9 * (rows.offset.abs() + EPS * rows.values.abs().sum(1))).all()
        if intermediate == "interval":
            torch.testing.assert_close(boxes.interval_margins(int(y[i]), wrong[i]), by_interval[i], rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_rows_over_windows_are_carried_back_like_rows_over_whole_maps(seed: int) -> None:
    """Any kernel, stride, padding, dilation and group, also where a window sees nothing but padding."""
    draw = torch.Generator().manual_seed(seed)

    def pair(low: int, high: int) -> tuple[int, int]:
        height, width = torch.randint(low, high + 1, (2,), generator=draw).tolist()
        return height, width

    groups, kernel, stride, padding, dilation = 1 + seed % 2, pair(1, 3), pair(1, 3), pair(0, 3), pair(1, 2)
    shape = (2 * groups, *pair(4, 8))
    weight = torch.randn(3 * groups, 2, *kernel, generator=draw, dtype=torch.float64)
    factors = torch.randn(shape, generator=draw, dtype=torch.float64)
    conv = Conv(weight, torch.zeros(3 * groups, dtype=torch.float64), stride, padding, dilation, groups)
    convolved = tuple(conv(torch.zeros(1, *shape).double()).shape[1:])
    for op, (channels, height, width) in ((conv, convolved), (Scale(factors, factors), shape)):
        top, left = (int(torch.randint(0, n, (), generator=draw)) for n in (height, width))
        rows = torch.randn(5, channels, min(2, height - top), min(2, width - left), generator=draw)
        whole = torch.zeros(5, channels, height, width, dtype=torch.float64)
        window(whole, (top, left), rows).copy_(rows)
        values, corner = transposed(op, rows.double(), shape, (top, left))
        assert corner is not None
        placed = torch.zeros(5, *shape, dtype=torch.float64)
        window(placed, corner, values).copy_(values)
        torch.testing.assert_close(placed, transposed(op, whole, shape)[0], rtol=0, atol=1e-12)
        assert min(values.shape) > 0


def test_layers_without_convolutions_before_a_relu_are_no_obstacle() -> None:
    layers = Normalize((0.5, 0.4), (0.2, 0.3)), nn.ReLU(), nn.BatchNorm2d(2)
    layers[2].bias.data.fill_(-0.3)
    tail = nn.ReLU(), nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES)
    plain = graph(nn.Sequential(*layers, *tail).eval().requires_grad_(False), SHAPE).map(Tensor.double)
    x = images(1, torch.float64)
    boxes = Enclosure(Network(plain), x[0], EPS, refined=99)
    found = crown(plain, x, EPS, margin_rows(torch.zeros(1, dtype=torch.long), CLASSES, x.dtype)).pre_activations
    for k, box in zip(boxes.network.relus, found, strict=True):
        torch.testing.assert_close(boxes.upper[boxes.network.nodes[k].inputs[0]], box.upper[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("side", [1, 2, 3, 6])
@pytest.mark.parametrize("case", DEEP, ids=str)
def test_tiles_give_the_boxes_of_whole_maps(case: Case, side: int) -> None:
    network, x = Network(double(case)), images(1, torch.float64)[0]
    tiled = Enclosure(network, x, EPS, refined=99, tile=side)
    assert any(tiled.row_of_a_tile(network.nodes[k].inputs[0]) for k in network.relus[1:])
    whole = Enclosure(network, x, EPS, refined=99, tile=0)
    plain = Enclosure(network, x, EPS, refined=0)
    for name in ("lower", "upper"):
        for one, other in zip(getattr(tiled, name), getattr(whole, name), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert any(bool((a < b).any()) for a, b in zip(tiled.upper, plain.upper, strict=True))


@pytest.mark.parametrize(
    "name", ["residual stack", "normalize padded conv bn", "shared relu", "bn1d between relus and last"]
)
def test_boxes_hold_ten_thousand_activations(name: str) -> None:
    plain = double(case_named(name))
    x = images(1, torch.float64, seed=3)
    boxes = Enclosure(Network(plain), x[0], EPS, refined=99)
    values = [samples_in_box(x, torch.full_like(x, EPS), 10_000)]
    for node in plain.nodes:
        values.append(node.op(*(values[i] for i in node.inputs)))
    for value, low, high in zip(values[1:], boxes.lower[1:], boxes.upper[1:], strict=True):
        assert (value >= low).all()
        assert (value <= high).all()
    label = int(plain(x).argmax())
    wrong = torch.tensor([j for j in range(CLASSES) if j != label])
    for slopes in (None, torch.rand(2, Network(plain).neurons, dtype=torch.float64)):
        rows = boxes.planes(label, wrong, slopes)
        margins = values[-1][:, [label]] - values[-1][:, wrong]
        assert (margins >= (values[0] - x).flatten(1) @ rows.values.T + rows.offset - rows.error).all()
    assert (margins >= boxes.interval_margins(label, wrong)).all()


def tiny() -> Graph:
    """Two pixels, two hidden neurons that are undecided, two classes."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        for layer, weight, bias in (
            (network[1], [[0.3, -1.1], [0.7, 0.9]], [0.13, -0.71]),
            (network[3], [[1.3, -0.4], [-0.6, 0.8]], [0.37, 0.19]),
        ):
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias))
    return graph(network, (1, 1, 2)).map(Tensor.detach)


def fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(x) for x in values.flatten().tolist()]


def exact_plane(plain: Graph, x: Tensor, eps: float, slopes: list[Fraction]) -> tuple[list[Fraction], Fraction]:
    """The plane of z_0 - z_1 over delta in rational arithmetic, for hidden neurons that are all undecided."""
    first, last = plain.nodes[1].op, plain.nodes[3].op
    a, b, c, d = (fractions(t) for op in (first, last) for t in (op.weight, op.bias))  # type: ignore[union-attr]
    pixels, radius = fractions(x), Fraction(eps)
    slope, offset = [Fraction(0), Fraction(0)], d[0] - d[1]
    for n in range(2):
        row = a[2 * n : 2 * n + 2]
        centre = row[0] * pixels[0] + row[1] * pixels[1] + b[n]
        spread = radius * (abs(row[0]) + abs(row[1]))
        low, high = centre - spread, centre + spread
        assert low < 0 < high
        coefficient = c[n] - c[2 + n]
        line = slopes[n] if coefficient >= 0 else high / (high - low)
        offset += coefficient * (line * centre - (0 if coefficient >= 0 else line * low))
        slope = [s + coefficient * line * w for s, w in zip(slope, row, strict=True)]
    return slope, offset


def test_values_equal_rational_arithmetic_within_their_rounding() -> None:
    plain, x, eps = tiny(), torch.tensor([[[[0.4, 0.3]]], [[[0.45, 0.35]]]]), 0.3
    slopes = torch.tensor([[0.3, 0.7], [0.9, 0.1]])
    rows = tuple(PlaneSource(i, 1, slopes[i]) for i in range(2))
    evaluator = Evaluator(Network(plain), x, torch.tensor([0, 0]), eps, "interval")
    for weights in ((1.0, 0.0), (0.0, 1.0), (0.3, 0.6), (7.1, 0.001)):
        proof = Proof(((0, 1), (1, 1)), rows, weights)
        (value,) = evaluator.values([proof])
        planes = [exact_plane(plain, x[i], eps, fractions(slopes[i])) for i in range(2)]
        lambdas = [Fraction(w) for w in weights]
        mixed = [sum(w * p[0][k] for w, p in zip(lambdas, planes, strict=True)) for k in range(2)]
        exact = sum(w * p[1] for w, p in zip(lambdas, planes, strict=True)) - Fraction(eps) * sum(map(abs, mixed))
        assert abs(Fraction(value.value) - exact) <= Fraction(value.rounding)
        assert 0 < value.rounding < 1e-12


def test_zero_is_no_proof() -> None:
    assert Value(2e-9, 1e-9).holds
    assert not any(Value(v, r).holds for v, r in ((0.0, 0.0), (1e-9, 1e-9), (-1.0, 0.0), (1.0, -1.0)))
    nan, inf = float("nan"), float("inf")
    assert not any(Value(v, r).holds for v, r in ((nan, 0.0), (1.0, nan), (inf, 1.0), (inf, inf), (1.0, inf)))
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2)).eval()
    nn.init.zeros_(network[1].weight)
    nn.init.zeros_(network[1].bias)
    evaluator = Evaluator(Network(graph(network, (1, 1, 2))), torch.zeros(1, 1, 1, 2), torch.tensor([0]), 0.0, "crown")
    values = evaluator.values([Proof(((0, 1),)), Proof(((0, 1),), (PlaneSource(0, 1),), (1.0,))])
    assert [v.holds for v in values] == [False, False]
    assert all(abs(v.value) < 1e-290 for v in values)


def test_lines_enclose_relu_where_boxes_are_extreme() -> None:
    """Slopes are rounded, heights are not allowed to suffer: checked in fractions at both ends and at zero."""
    low = torch.tensor([-1.0, -1e-300, -1e300, -0.1, -3.0, -1e-17, 0.0, -2.0], dtype=torch.float64)
    high = torch.tensor([1e-17, 1e-300, 1e300, 0.3, 7.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    lines = ReluLines.around(low, high)
    assert lines.undecided.tolist() == [True] * 6 + [False] * 2
    for k in range(8):
        slope, height, below = (Fraction(float(t[k])) for t in (lines.upper, lines.height, lines.lower))
        for z in (Fraction(float(low[k])), Fraction(float(high[k])), Fraction(0)):
            assert below * z <= max(z, Fraction(0)) <= slope * z + height


def test_nan_and_infinity_never_prove() -> None:
    plain = double(case_named("residual"))
    x = images(1, torch.float64)
    label = int(plain(x).argmax())
    wrong = [j for j in range(CLASSES) if j != label]
    proofs = [Proof(((0, wrong[0]),)), Proof(((0, wrong[0]),), (PlaneSource(0, wrong[0]),), (1.0,))]

    def holds(network: Graph, image: Tensor) -> list[bool]:
        evaluator = Evaluator(Network(network), image, torch.tensor([label]), 1e-4, "crown")
        return [value.holds for value in evaluator.values(proofs)]

    assert holds(plain, x) == [True, True]
    for bad in (torch.nan, torch.inf, -torch.inf):
        spoiled = x.clone()
        spoiled[0, 0, 2, 2] = bad
        assert holds(plain, spoiled) == [False, False]
        for op in (node.op for node in plain.nodes if hasattr(node.op, "weight")):
            weight = op.weight.flatten()[0].clone()
            op.weight.view(-1)[0] = bad
            assert holds(plain, x) == [False, False]
            op.weight.view(-1)[0] = weight
    assert x.shape[1:] == SHAPE
