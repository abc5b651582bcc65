"""Linear bounds against what can be computed otherwise: by hand, with dense matrices, and as inner products."""

import itertools

import pytest
import torch
from support.helpers import images
from test_linear import BY_NAME, EPS, network, rows_of
from torch import Tensor, nn

from citrus.bounds import LinearSettings, crown, lower_planes
from citrus.networks import graph
from citrus.networks.operations import Add, Conv, Graph, Relu


def _tiny(weights: list[list[float]], bias: list[float], last: list[list[float]]) -> Graph:
    module = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, len(last), bias=False))
    module[1].weight.data, module[1].bias.data = torch.tensor(weights), torch.tensor(bias)
    module[3].weight.data = torch.tensor(last)
    return graph(module.eval().requires_grad_(False), (2, 1, 1))


def test_plane_by_hand() -> None:
    """z = (x1 + x2, x1 - x2 - 1) on [-1, 1]^2: z1 in [-2, 2], z2 in [-3, 1].

    relu(z1) <= z1 / 2 + 1 and >= 0 (u is not above -l); relu(z2) <= z2 / 4 + 3/4 and >= 0.
    Row relu(z1) - relu(z2): lower line 0, minus (x1 - x2 - 1) / 4 + 3/4, so a = (-1/4, 1/4), b = -1/2.
    """
    net = _tiny([[1.0, 1.0], [1.0, -1.0]], [0.0, -1.0], [[1.0, -1.0], [0.0, 0.0]])
    bounds = crown(net, torch.zeros(1, 2, 1, 1), 1.0, None, LinearSettings(intersect=False, planes=True))
    assert bounds.lower_planes is not None
    torch.testing.assert_close(bounds.lower_planes.a[0, 0].flatten(), torch.tensor([-0.25, 0.25]))
    torch.testing.assert_close(bounds.lower_planes.b[0, 0], torch.tensor(-0.5))
    torch.testing.assert_close(bounds.lower[0], torch.tensor([-1.0, 0.0]))
    torch.testing.assert_close(bounds.upper[0], torch.tensor([2.0, 0.0]))  # z1 / 2 + 1 at x = (1, 1)
    given = [torch.ones(1, 2), torch.tensor([[[0.5, 0.0], [0.5, 0.0]]])]
    for slope, expected in zip(given, ([0.75, 1.25], [0.25, 0.75]), strict=True):
        planes = lower_planes(
            net, torch.zeros(1, 2, 1, 1), torch.ones(1, 2, 1, 1), None, bounds.pre_activations, [slope]
        )
        torch.testing.assert_close(planes.a[0, 0].flatten(), torch.tensor(expected))


def _dense(net: Graph, centre: Tensor, eps: float, spec: Tensor) -> tuple[Tensor, list[Tensor]]:
    """CROWN of one image with full matrices and loops over neurons, written without the library's substitution.

    Every value is kept as a pair of affine functions of the input per neuron, made by substituting step by step.
    """
    sizes = [centre.numel(), *(torch.Size(n.shape).numel() for n in net.nodes)]
    matrices = {}
    for i, node in enumerate(net.nodes, start=1):
        if not isinstance(node.op, Relu | Add):
            shape = net.nodes[node.inputs[0] - 1].shape if node.inputs[0] else net.input_shape
            zero = node.op(torch.zeros(1, *shape)).flatten()
            columns = node.op(torch.eye(sizes[node.inputs[0]]).view(-1, *shape)).flatten(1) - zero
            matrices[i] = (columns.T, zero)
    lines: dict[int, list[tuple[float, float, float]]] = {}  # value -> (lower slope, upper slope, upper offset)

    def lower(value: int, row: Tensor) -> float:
        pending, constant = {value: row.clone()}, 0.0
        for i in range(value, 0, -1):
            if i not in pending:
                continue
            row, node = pending.pop(i), net.nodes[i - 1]
            if isinstance(node.op, Relu):
                new = torch.zeros_like(row)
                for j, (low, up, offset) in enumerate(lines[i]):
                    new[j] = row[j] * (low if row[j] > 0 else up)
                    constant += 0.0 if row[j] > 0 else float(row[j]) * offset
                row = new
            elif not isinstance(node.op, Add):
                constant += float(row @ matrices[i][1])
                row = row @ matrices[i][0]
            for j in node.inputs:
                pending[j] = pending.get(j, 0) + row
        return constant + float(pending[0] @ centre.flatten()) - eps * float(pending[0].abs().sum())

    found = []
    for i in [k for k, n in enumerate(net.nodes, start=1) if isinstance(n.op, Relu)]:
        value = net.nodes[i - 1].inputs[0]
        bounds, lines[i] = [], []
        for j in range(sizes[value]):
            row = torch.zeros(sizes[value])
            row[j] = 1.0
            low, high = lower(value, row), -lower(value, -row)
            bounds.append((low, high))
            if high <= 0 or low >= 0:
                lines[i].append((float(high > 0), float(high > 0), 0.0))
            else:
                lines[i].append((float(high > -low), high / (high - low), -high * low / (high - low)))
        found.append(torch.tensor(bounds))
    return torch.tensor([lower(len(net.nodes), row) for row in spec]), found


DENSE = ("mlp", "deep padding", "deep groups", "deep block", "residual stack", "deep pool", "doubled")


@pytest.mark.parametrize("name", DENSE)
def test_equals_a_dense_reference(name: str) -> None:
    """The two may treat a neuron differently that intervals call decided and CROWN does not: none here."""
    net, centre, spec = network(BY_NAME[name]), images(1), rows_of(1)
    expected, boxes = _dense(net, centre[0], EPS, spec[0])
    bounds = crown(net, centre, EPS, spec, LinearSettings(intersect=False))
    torch.testing.assert_close(bounds.lower[0], expected, atol=2e-4, rtol=2e-4)
    for box, reference in zip(bounds.pre_activations, boxes, strict=True):
        undecided = ((box.lower < 0) & (box.upper > 0)).flatten()
        torch.testing.assert_close(box.lower.flatten()[undecided], reference[undecided, 0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(box.upper.flatten()[undecided], reference[undecided, 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups"),
    [*itertools.product([(4, 4), (3, 2)], [(1, 1), (2, 3)], [(0, 0), (2, 1)], [(1, 1), (2, 1)], [1, 2])],
)
def test_transposed_convolution(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> None:
    """<rows, W x> = <rows W, x> on whole maps and on windows, for few rows and for many (other kernels on a CPU)."""
    weight = torch.randn(8, 6 // groups, *kernel, generator=torch.Generator().manual_seed(0)).double()
    conv = Conv(weight, torch.zeros(8).double(), stride, padding, dilation, groups)
    x = torch.randn(1, 6, 11, 12, dtype=torch.double)
    y = conv(x)
    for count in (3, 600):
        rows = torch.randn(count, 8, *y.shape[2:], dtype=torch.double)
        rows[:, :, :1], rows[:, :, 3:], rows[..., 2:] = 0, 0, 0
        part = rows[:, :, 1:3, :2]
        whole, corner = conv.transpose(rows, (6, 11, 12))
        assert corner == (0, 0)
        expected = (rows * y).flatten(1).sum(1)
        inside = whole.shape[2:]
        torch.testing.assert_close((whole * x[..., : inside[0], : inside[1]]).flatten(1).sum(1), expected)
        small, (top, left) = conv.transpose(part, (6, 11, 12), (1, 0))
        seen = x[..., top : top + small.shape[2], left : left + small.shape[3]]
        torch.testing.assert_close((small * seen).flatten(1).sum(1), expected)


def test_decided_and_empty_boxes_give_finite_gradients() -> None:
    """Boxes of width 0 at 0 have no upper line u / (u - l)."""
    net = _tiny([[0.0, 0.0], [1.0, 0.0]], [0.0, 0.0], [[1.0, -1.0], [-1.0, 1.0]])
    centre = torch.zeros(1, 2, 1, 1, requires_grad=True)
    for radius in (0.0, 0.5):
        bounds = crown(net, centre, radius)
        assert bounds.lower.isfinite().all()
        assert torch.autograd.grad(bounds.lower.sum(), centre)[0].isfinite().all()
