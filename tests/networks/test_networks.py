"""Folding a network into plain operations changes no output; what cannot be folded is refused by name."""

import copy
import math
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from support.helpers import CLASSES, PIXELS, SHAPE, ZOO, Case, case_named, folded, head, images, kinds
from torch import Tensor, nn

from citrus.errors import CitrusError
from citrus.networks import Normalize, build, fold, graph, trace
from citrus.networks.kernels import channels_last, in_device_layout

zoo = pytest.mark.parametrize("case", ZOO, ids=str)


@zoo
def test_graph_equals_module(case: Case) -> None:
    network, x, plain = case.build(), images(8), folded(case)
    torch.testing.assert_close(plain(x), network(x), rtol=1e-5, atol=1e-5)
    assert plain.classes == network(x).shape[1] == CLASSES
    assert plain.input_shape == SHAPE


@zoo
def test_graph_equals_module_to_the_last_digits_in_float64(case: Case) -> None:
    network, x = case.build(torch.float64), images(16, torch.float64)
    torch.testing.assert_close(folded(case, torch.float64)(x), network(x), rtol=1e-12, atol=1e-12)


@zoo
def test_only_plain_operations_remain(case: Case) -> None:
    plain = folded(case)
    assert set(kinds(plain)) <= {"Conv", "Linear", "Relu", "Flatten", "Add", "Scale"}
    assert kinds(plain).count("Scale") == case.scales
    assert kinds(plain).count("Relu") == case.relus


@zoo
def test_nodes_read_earlier_values_and_tell_their_shapes(case: Case) -> None:
    plain = folded(case)
    values = [images(2)]
    for i, node in enumerate(plain.nodes):
        assert all(0 <= j <= i for j in node.inputs)
        assert len(node.inputs) == (2 if type(node.op).__name__ == "Add" else 1)
        values.append(node.op(*(values[j] for j in node.inputs)))
        assert tuple(values[-1].shape[1:]) == node.shape


@zoo
def test_folding_leaves_the_module_alone(case: Case) -> None:
    network = case.build()
    before = copy.deepcopy(network.state_dict())
    traced = trace(network, SHAPE)
    fold(traced)(images(2))
    fold(traced, traced.forward_with_statistics(images(4))[1])
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


# Batch statistics


def train_forward(network: nn.Module, x: Tensor) -> Tensor:
    """What PyTorch itself computes in training mode."""
    return network.train()(x)


def assert_equal_gradients(ours: nn.Module, reference: nn.Module) -> None:
    for (name, parameter), expected in zip(ours.named_parameters(), reference.parameters(), strict=True):
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-9, atol=1e-9)


@zoo
def test_batch_statistics_equal_train_mode(case: Case) -> None:
    traced, x = trace(case.build(), SHAPE), images(16)
    expected = train_forward(case.build(), x)
    output, statistics = traced.forward_with_statistics(x)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fold(traced, statistics)(x), expected, rtol=1e-5, atol=1e-5)
    assert statistics.keys() == traced.batch_norms().keys()


@zoo
def test_gradients_through_batch_statistics_equal_autograd(case: Case) -> None:
    ours, reference, x = case.build(torch.float64), case.build(torch.float64), images(16, torch.float64)
    weights = images(16, torch.float64, seed=1, shape=(CLASSES,))
    traced = trace(ours, SHAPE)
    (fold(traced, traced.forward_with_statistics(x)[1])(x) * weights).sum().backward()
    (train_forward(reference, x) * weights).sum().backward()
    assert_equal_gradients(ours, reference)


@zoo
def test_gradients_through_running_statistics_equal_autograd(case: Case) -> None:
    ours, reference, x = case.build(torch.float64), case.build(torch.float64), images(4, torch.float64)
    graph(ours, SHAPE)(x).square().sum().backward()
    reference(x).square().sum().backward()
    assert_equal_gradients(ours, reference)


def test_batch_statistics_by_hand() -> None:
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(2, eps=0.0), nn.Linear(2, 1, bias=False))
    nn.init.ones_(network[2].weight)
    x = torch.tensor([[[[1.0, 10.0]]], [[[3.0, 30.0]]]])
    traced = trace(network, (1, 1, 2))
    output, statistics = traced.forward_with_statistics(x)
    mean, variance = statistics["1"]
    assert mean.tolist() == [2.0, 20.0]
    assert variance.tolist() == [1.0, 100.0]  # biased
    assert output.flatten().tolist() == [-2.0, 2.0]
    # Fixed statistics stay fixed for other inputs: (5 - 2) / 1 + (20 - 20) / 10.
    assert fold(traced, statistics)(torch.tensor([[[[5.0, 20.0]]]])).item() == pytest.approx(3.0)


def test_batch_statistics_need_two_values() -> None:
    traced = trace(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(PIXELS), nn.Linear(PIXELS, 2)), SHAPE)
    with pytest.raises(CitrusError, match="more than one image"):
        traced.forward_with_statistics(images(1))


def test_batch_norm_without_running_statistics_works_with_batch_statistics() -> None:
    network = nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False), *head(PIXELS))
    traced, x = trace(network, SHAPE), images(4)
    plain = fold(traced, traced.forward_with_statistics(x)[1])
    torch.testing.assert_close(plain(x), network(x), rtol=1e-5, atol=1e-5)


class SharedBatchNorm(nn.Module):
    """One BatchNorm layer at two places: it has two pairs of batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(PIXELS, 4), nn.Linear(4, 4)
        self.bn, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.bn(self.b(self.bn(self.a(x.flatten(1))).relu())))


def test_shared_batch_norm_is_right_or_refused() -> None:
    network, x = SharedBatchNorm(), images(8)
    try:
        traced = trace(network, SHAPE)
    except CitrusError as error:
        assert "'bn'" in str(error)  # noqa: PT017 - an error is one of two right answers
        return
    plain = fold(traced, traced.forward_with_statistics(x)[1])
    torch.testing.assert_close(plain(x), train_forward(network, x), rtol=1e-5, atol=1e-5)


# Folding, looked at closely


def test_normalisation_before_padding_becomes_a_bias_map() -> None:
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    nn.init.ones_(conv.weight)
    network = nn.Sequential(Normalize((0.5,), (0.25,)), conv, nn.Flatten()).eval()
    op = graph(network, (1, 3, 3)).nodes[0].op
    assert op.weight.unique().tolist() == [4.0]  # 1 / std
    # Each tap inside the image adds -mean / std = -2; taps on the padding add nothing.
    assert op.bias.tolist() == [[[-8.0, -12.0, -8.0], [-12.0, -18.0, -12.0], [-8.0, -12.0, -8.0]]]


def test_batch_norm_folds_into_weights_by_hand() -> None:
    linear, bn = nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)
    for layer, *values in ((linear, 3, 1), (bn, -2, 5)):
        nn.init.constant_(layer.weight, values[0])
        nn.init.constant_(layer.bias, values[1])
    bn.running_mean, bn.running_var = torch.tensor([7.0]), torch.tensor([4.0])
    (flatten, node) = graph(nn.Sequential(nn.Flatten(), linear, bn).eval(), (1, 1, 1)).nodes
    assert type(flatten.op).__name__ == "Flatten"
    # (3 x + 1 - 7) / 2 * -2 + 5 = -3 x + 11
    assert node.op.weight.item() == -3.0
    assert node.op.bias.item() == 11.0


def test_value_read_twice_is_not_folded_into() -> None:
    case = case_named("residual pre-activation")
    plain = graph(case.build(), SHAPE)
    assert kinds(plain)[:3] == ["Conv", "Scale", "Relu"]
    add = next(node for node in plain.nodes if type(node.op).__name__ == "Add")
    assert 1 in add.inputs  # the shortcut reads the convolution itself, not the BatchNorm behind it


def test_names_follow_the_module() -> None:
    case = case_named("residual")
    names = [node.name for node in graph(case.build(), SHAPE).nodes]
    assert names[0] == "0.conv1"
    assert "0.shortcut.0" in names


def test_map_changes_weights_only() -> None:
    plain = graph(case_named("conv").build(), SHAPE)
    doubled = plain.map(Tensor.double)
    assert doubled(images(2, torch.float64)).dtype == torch.float64
    assert kinds(doubled) == kinds(plain)
    assert not plain.map(Tensor.detach)(images(2)).requires_grad
    assert plain(images(2)).requires_grad


# Architectures


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters", "units"),
    [
        ("cnn7", (1, 28, 28), 10, 13_259_338, 176_128),
        ("cnn7", (3, 32, 32), 10, 17_192_650, 229_888),
        ("cnn7", (3, 64, 64), 200, 17_290_120, 819_712),
        ("convsmall", (1, 28, 28), 10, 89_606, 3_604),
        ("convsmall", (3, 32, 32), 10, 125_318, 4_852),
    ],
)
def test_sizes(name: str, shape: tuple[int, int, int], classes: int, parameters: int, units: int) -> None:
    with torch.device("meta"):
        network = build(name, shape, classes)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert sum(math.prod(s.shape) for s in trace(network, shape).layers if isinstance(s.layer, nn.ReLU)) == units


@pytest.mark.parametrize("name", ["cnn7", "convsmall", "smallcnn", "mlp"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 14)])
def test_every_architecture_takes_every_shape(name: str, shape: tuple[int, int, int]) -> None:
    mean, std = ((0.5, 0.4, 0.3)[: shape[0]], (0.2, 0.3, 0.4)[: shape[0]])
    network = build(name, shape, 7, mean, std).eval()
    x = images(2, shape=shape)
    assert network(x).shape == (2, 7)
    plain = graph(network, shape)
    assert "Scale" not in kinds(plain)
    torch.testing.assert_close(plain(x), network(x), rtol=1e-5, atol=1e-5)


def test_build_spreads_one_mean_over_all_channels() -> None:
    normalize = build("mlp", (3, 12, 12), 2, mean=(0.5,), std=(0.25,))[0]
    assert normalize.mean.flatten().tolist() == [0.5] * 3
    assert normalize(torch.full((1, 3, 12, 12), 0.75)).unique().tolist() == [1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cnn8", (1, 28, 28), 10), "Unknown network 'cnn8': did you mean 'cnn7'?"),
        (("vgg", (1, 28, 28), 10), "known: cnn7, convsmall, mlp, smallcnn"),
        (("mlp", (1, 28, 11), 10), "28x11 pixels are too small"),
        (("mlp", (1, 28, 28), 1), "at least two classes, got 1"),
        (("mlp", (1, 28, 28), 10, (0.0,), (0.0,)), "positive std"),
        (("mlp", (3, 28, 28), 10, (0.1, 0.2, 0.3), (1.0, 1.0)), "need as many means and stds, got 3 and 2"),
    ],
)
def test_build_errors(arguments: tuple, message: str) -> None:
    with pytest.raises(CitrusError, match=re.escape(message)):
        build(*arguments)


# What is refused


class Functional(nn.Module):
    """A network around one function of an image."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.head = nn.Linear(PIXELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(x))


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class TwoOutputs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1)
        return x, x


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(PIXELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=x.flatten(1))


def depends_on_data(x: Tensor) -> Tensor:
    return x.flatten(1) if x.sum() > 0 else -x.flatten(1)


def on_maps(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Sequential(*layers), *head(PIXELS))


REFUSED = {
    "max pool": (on_maps(nn.MaxPool2d(1)), ["Layer 1", "MaxPool2d '1.0'", "supported: Conv2d", "AvgPool2d"]),
    "sigmoid": (on_maps(nn.ReLU(), nn.Sigmoid()), ["Layer 2", "Sigmoid '1.1'", "supported: Conv2d", "ReLU"]),
    "gelu": (on_maps(nn.GELU()), ["Layer 1", "GELU '1.0'", "supported:"]),
    "dropout": (on_maps(nn.Dropout()), ["Layer 1", "Dropout '1.0'", "supported:"]),
    "conv1d": (nn.Sequential(nn.Conv1d(2, 2, 3)), ["Layer 0", "Conv1d '0'", "supported:"]),
    "functional max pool": (
        Functional(lambda x: F.max_pool2d(x, 1).flatten(1)),
        ["Layer 0", "max_pool2d", "supported:"],
    ),
    "multiplication": (Functional(lambda x: (2 * x).flatten(1)), ["Layer 0", "mul", "supported:"]),
    "addition of a number": (Functional(lambda x: (x + 1).flatten(1)), ["Layer 0", "add", "supported:"]),
    "weighted addition": (Functional(lambda x: torch.add(x, x, alpha=2).flatten(1)), ["Layer 0", "add", "supported:"]),
    "flatten of all axes": (Functional(lambda x: x.flatten()), ["Layer 0", "flatten", "supported:"]),
    "flatten to an axis": (Functional(lambda x: torch.flatten(x, end_dim=1)), ["Layer 0", "flatten", "supported:"]),
    "control flow": (Functional(depends_on_data), ["Functional cannot be traced", "supported:"]),
    "padding mode": (
        on_maps(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
        ["Layer 1", "Conv2d '1.0'", "padding_mode 'reflect'", "only 'zeros'"],
    ),
    "padding same": (on_maps(nn.Conv2d(2, 2, 3, padding="same")), ["Layer 1", "Conv2d '1.0'", "padding 'same'"]),
    "ceil mode": (on_maps(nn.AvgPool2d(1, ceil_mode=True)), ["Layer 1", "AvgPool2d '1.0'", "ceil_mode"]),
    "padding not counted": (
        on_maps(nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
        ["Layer 1", "AvgPool2d '1.0'", "count_include_pad"],
    ),
    "flatten some axes": (on_maps(nn.Flatten(2)), ["Layer 1", "Flatten '1.0'", "(1, -1)"]),
    "wrong channels": (nn.Sequential(nn.Conv2d(3, 2, 3), *head(32)), ["Layer '0'", "Conv2d(3, 2", "(2, 6, 6)"]),
    "wrong features": (nn.Sequential(*head(71)), ["Layer '1'", "Linear(in_features=71", "(72,)"]),
    "wrong bn": (on_maps(nn.BatchNorm2d(3)), ["Layer '1.0'", "BatchNorm2d(3", "(2, 6, 6)"]),
    "bn1d on maps": (on_maps(nn.BatchNorm1d(2)), ["Layer '1.0'", "BatchNorm1d(2", "(2, 6, 6)"]),
    "wrong normalize": (
        nn.Sequential(Normalize((0.5,) * 3, (1.0,) * 3), *head(72)),
        ["Layer '0'", "Normalize", "(2, 6, 6)"],
    ),
    "image too small": (nn.Sequential(nn.Conv2d(2, 2, 7), *head(72)), ["Layer '0'", "Conv2d(2, 2", "(2, 6, 6)"]),
    "branches of two shapes": (
        Functional(lambda x: (x.flatten(1) + x).flatten(1)),
        ["cannot take an input of shape (72,) and (2, 6, 6)", "one shape"],
    ),
    "linear on maps": (
        nn.Sequential(Normalize((0.5,) * 2, (1.0,) * 2), nn.Linear(6, 6), *head(72)),
        ["Layer", "Linear", "(2, 6, 6)"],
    ),
    "no vector": (nn.Sequential(nn.Conv2d(2, 3, 3)), ["vector of class scores", "(3, 4, 4)"]),
    "two inputs": (TwoInputs(), ["TwoInputs takes more than one input"]),
    "two outputs": (TwoOutputs(), ["TwoOutputs must return the value of its last layer"]),
    "keyword argument": (Keyword(), ["head"]),
    "no running statistics": (
        on_maps(nn.BatchNorm2d(2, track_running_stats=False)),
        ["Layer '1.0'", "BatchNorm2d(2", "keeps no running statistics"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_and_place(name: str) -> None:
    network, fragments = REFUSED[name]
    with pytest.raises(CitrusError) as raised:
        graph(network.eval(), SHAPE)
    for fragment in fragments:
        assert fragment in str(raised.value)


def test_training_mode_is_refused() -> None:
    network = case_named("residual").build()
    network.train()
    with pytest.raises(CitrusError, match=re.escape("training mode: call .eval()")):
        graph(network, SHAPE)


def test_a_batch_norm_left_in_training_mode_is_refused() -> None:
    network = nn.Sequential(nn.BatchNorm2d(2), *head(PIXELS)).eval()
    network[0].train()
    with pytest.raises(CitrusError, match="training mode"):
        graph(network, SHAPE)


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (4, 7)])
def test_layout_changes_no_value(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    assert torch.equal(channels_last(x), x)
    assert in_device_layout(x) is x  # on the CPU
    assert x.dim() < 4 or channels_last(x).stride(1) == 1


def test_a_graph_does_not_wait_for_the_compiler_to_load() -> None:
    """torch loads it at the first product of meta tensors, two seconds that every command would take longer."""
    code = (
        "import sys; from citrus.networks import build, graph; "
        "graph(build('cnn7', (1, 12, 12), 10, (0.5,), (0.5,)).eval(), (1, 12, 12)); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
