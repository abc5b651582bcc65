"""Zonotopes by hand, against generators written out one by one, and against what the network really answers."""

import pytest
import torch
from support.helpers import SHAPE, ZOO, Case, folded, images
from torch import Tensor, nn

from citrus.bounds.interval import Box
from citrus.bounds.zonotope import ParallelLines, enclose
from citrus.networks import graph
from citrus.networks.operations import Add, Graph, Relu

EPS = 0.05
zoo = pytest.mark.parametrize("case", ZOO, ids=str)


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    layer.weight.data, layer.bias.data = torch.tensor(weight).float(), torch.tensor(bias).float()
    return layer.requires_grad_(False)


def test_by_hand() -> None:
    """x in [0, 2] x [0, 2] -> (x1 + x2 - 1, x1 - x2, -9) -> ReLU -> (sum of all three, first - second).

    z1 in [-1, 3]: s = 3/4, m = 3/8.  z2 in [-2, 2]: s = 1/2, m = 1/2.  z3 is off. With x = 1 + e1, 1 + e2:
    r1 = 3/4 (1 + e1 + e2) + 3/8 (1 + e3) and r2 = 1/2 (e1 - e2) + 1/2 (1 + e4).
    Sum: 13/8 + 5/4 e1 + 1/4 e2 + 3/8 e3 + 1/2 e4. Difference: 5/8 + 1/4 e1 + 5/4 e2 + 3/8 e3 - 1/2 e4.
    """
    first = linear([[1, 1], [1, -1], [0, 0]], [-1, 0, -9])
    second = linear([[1, 1, 1], [1, -1, 0]], [0, 0])
    plain = graph(nn.Sequential(nn.Flatten(), first, nn.ReLU(), second).eval(), (1, 1, 2))
    zonotope = enclose(plain, 4, torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
    assert zonotope.size == 5
    assert zonotope.lines[0].slope.tolist() == [[0.75, 0.5, 0]]
    assert zonotope.lines[0].half.tolist() == [[0.375, 0.5, 0]]
    assert zonotope.box().centre.tolist() == [[13 / 8, 5 / 8]]
    assert zonotope.box().radius.tolist() == [[19 / 8, 19 / 8]]
    e = torch.tensor([[1.0, -0.5, 0.25, -1.0, 0.7]])
    at = [13 / 8 + 5 / 4 - 1 / 8 + 3 / 32 - 1 / 2, 5 / 8 + 1 / 4 - 5 / 8 + 3 / 32 + 1 / 2]
    torch.testing.assert_close(zonotope.point(e), torch.tensor([at]))


def test_lines_hold_the_relu_and_no_less_would_do() -> None:
    lower = torch.tensor([-2.0, -1.0, -0.5, 0.0, 1.0, -3.0, -1.0, 0.0])
    upper = torch.tensor([1.0, 1.0, 4.0, 2.0, 3.0, -1.0, 0.0, 0.0])
    lines = ParallelLines.around(Box((lower + upper) / 2, (upper - lower) / 2))
    share = torch.linspace(0, 1, 181)[:, None]  # meets 0 in each box
    z = lower + share * (upper - lower)
    low = lines.slope * z
    assert (z.relu() >= low - 1e-6).all()
    assert (z.relu() <= low + 2 * lines.half + 1e-6).all()
    torch.testing.assert_close((z.relu() - low).amin(0), torch.zeros(8), atol=1e-6, rtol=0)
    torch.testing.assert_close((z.relu() - low).amax(0), 2 * lines.half, atol=1e-6, rtol=0)
    assert lines.half.tolist()[3:] == [0] * 5, "decided ReLUs have no error"


def test_a_bound_that_is_no_number_certifies_nothing() -> None:
    nan = torch.tensor([torch.nan])
    lines = ParallelLines.around(Box(nan, nan))
    assert lines.half.isnan().all()


def dense(plain: Graph, centre: Tensor, radius: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Centre and generators (errors, ...) of every value for one image: each error is carried along by itself."""
    pixels = radius.numel()
    values = [(centre, torch.diag(radius.flatten()).view(pixels, *radius.shape))]
    for node in plain.nodes:
        middle, generators = values[node.inputs[0]]
        if isinstance(node.op, Relu):
            reach = generators.abs().sum(0)
            new = []
            slope = torch.zeros_like(middle)
            shift = torch.zeros_like(middle)
            for place in torch.cartesian_prod(*(torch.arange(n) for n in middle.shape)).view(-1, middle.dim()).tolist():
                i = tuple(place)
                low, high = float(middle[i] - reach[i]), float(middle[i] + reach[i])
                if low >= 0:
                    slope[i] = 1.0
                elif high > 0:
                    slope[i] = high / (high - low)
                    shift[i] = -high * low / (high - low) / 2
                error = torch.zeros_like(middle)
                error[i] = shift[i]
                new.append(error)
            values.append((slope * middle + shift, torch.cat([slope * generators, torch.stack(new)])))
        elif isinstance(node.op, Add):
            other, more = values[node.inputs[1]]
            count = max(len(generators), len(more))
            grown = [torch.cat([g, g.new_zeros(count - len(g), *g.shape[1:])]) for g in (generators, more)]
            values.append((middle + other, grown[0] + grown[1]))
        else:
            bias = node.op(torch.zeros_like(middle)[None])
            values.append((node.op(middle[None])[0], node.op(generators) - bias))
    return values


# In a residual network generators of two branches have different ReLUs in them: the plain list above would mix them up.
CHAINS = [case for case in ZOO if not any(isinstance(node.op, Add) for node in folded(case).nodes)]


@pytest.mark.parametrize("case", CHAINS, ids=str)
def test_boxes_are_those_of_generators_written_out(case: Case) -> None:
    plain = folded(case, torch.float64)
    x = images(2, torch.float64)
    radius = EPS * images(2, torch.float64, seed=3)
    expected = [dense(plain, x[i], radius[i]) for i in range(2)]
    for value in range(1, len(plain.nodes) + 1):
        box = enclose(plain, value, x, radius).box()
        for i in range(2):
            middle, generators = expected[i][value]
            torch.testing.assert_close(box.centre[i], middle, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(box.radius[i], generators.abs().sum(0), rtol=1e-9, atol=1e-9)


@zoo
def test_whatever_the_network_answers_is_a_point_of_its_zonotope(case: Case) -> None:
    """The errors that lead to a true value can be told: they lie in [-1, 1], and they give that value."""
    plain = folded(case, torch.float64)
    x = images(3, torch.float64)
    radius = torch.full_like(x, EPS)
    generator = torch.Generator().manual_seed(5)
    for corner in (False, True):
        first = 2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1
        first = first.sign() if corner else first
        values = plain.values(x + EPS * first)
        for value in range(len(plain.nodes) + 1):
            zonotope = enclose(plain, value, x, radius)
            errors = [first.flatten(1)]
            relus = [node for node in plain.nodes[:value] if isinstance(node.op, Relu)]
            for node, line in zip(relus, zonotope.lines, strict=True):
                z = values[node.inputs[0]]
                error = (z.relu() - line.slope * z) / line.half.clamp(min=1e-300) - 1
                decided = line.half == 0
                torch.testing.assert_close(z.relu()[decided], (line.slope * z)[decided], rtol=0, atol=1e-12)
                errors.append(torch.where(decided, 0.0, error).flatten(1))
            e = torch.cat(errors, 1)
            assert e.abs().max() <= 1 + 1e-9
            torch.testing.assert_close(zonotope.point(e), values[value], rtol=1e-9, atol=1e-9)
            box = zonotope.box()
            assert (box.lower <= values[value] + 1e-9).all()
            assert (box.upper >= values[value] - 1e-9).all()


@zoo
def test_points_fill_the_box_up_to_its_edge(case: Case) -> None:
    """The bound of a neuron is reached by the errors that have the signs of its generators."""
    plain = folded(case, torch.float64)
    x = images(2, torch.float64)
    value = len(plain.nodes)
    zonotope = enclose(plain, value, x, torch.full_like(x, EPS))
    e = torch.zeros(2, zonotope.size, dtype=x.dtype, requires_grad=True)
    box = zonotope.box()
    for neuron in range(plain.classes):
        slopes = torch.autograd.grad(zonotope.point(e)[:, neuron].sum(), e)[0]
        torch.testing.assert_close(slopes.abs().sum(1), box.radius[:, neuron], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(zonotope.point(slopes.sign())[:, neuron], box.upper[:, neuron], rtol=1e-9, atol=1e-9)


def test_each_image_has_its_own_zonotope() -> None:
    plain = folded(ZOO[0])
    x = images(4)
    radius = EPS * images(4, seed=1)
    together = enclose(plain, len(plain.nodes), x, radius).box()
    for i in range(4):
        alone = enclose(plain, len(plain.nodes), x[i : i + 1], radius[i : i + 1]).box()
        torch.testing.assert_close(alone.radius[0], together.radius[i])
        torch.testing.assert_close(alone.centre[0], together.centre[i])
    assert tuple(plain.input_shape) == SHAPE
