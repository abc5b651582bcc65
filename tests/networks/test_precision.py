"""TF32, bfloat16 and autocast are off while anything is proved, and as they were afterwards."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from citrus.bounds import Bounds, Box, Planes, alpha, crown, interval, lower_planes, margin_rows
from citrus.certify import CertifySettings, certify
from citrus.errors import CitrusError
from citrus.methods import METHODS, Batch
from citrus.networks import Graph, Normalize, fold, graph, trace
from citrus.networks.kernels import tf32, true_float32
from citrus.networks.operations import Conv
from citrus.training import evaluation


def switches() -> tuple[str, ...]:
    """Of convolutions and products on a GPU and on a CPU."""
    cudnn: Any = torch.backends.cudnn
    cpu: Any = torch.backends.mkldnn
    parts: list[Any] = [cudnn.conv, torch.backends.cuda.matmul, cpu.conv, cpu.matmul]
    return tuple(part.fp32_precision for part in parts)


TRUE = ("ieee",) * 4
FAST = ("tf32", "tf32")  # on a GPU


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
def test_true_float32_whatever_was_set_before(before: str) -> None:
    torch.set_float32_matmul_precision(before)
    try:
        outside = switches()
        with true_float32():
            assert switches() == TRUE
        assert switches() == outside
        assert torch.get_float32_matmul_precision() == before
        with pytest.raises(ZeroDivisionError), true_float32():
            raise ZeroDivisionError
        assert switches() == outside
        with tf32(True):
            assert switches()[:2] == FAST
            with true_float32():
                assert switches() == TRUE
            assert switches()[:2] == FAST
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.fixture
def set_by_operation() -> Iterator[None]:
    """TF32 by torch's newer switches, which do not go together with those that old code reads."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = "ieee"


@pytest.mark.usefixtures("set_by_operation")
def test_torch_s_newer_switches_are_off_in_a_proof_and_refused_in_training() -> None:
    before = switches()
    with true_float32():
        assert switches() == TRUE
    assert switches() == before
    with pytest.raises(CitrusError, match="set_float32_matmul_precision"), tf32(True):
        pass


@pytest.mark.parametrize("name", ["interval", "crown", "alpha", "planes", "certify"])
def test_autocast_does_not_reach_a_proof(name: str) -> None:
    """bfloat16 has 8 bits: what is proved in it is false."""
    network = with_products_everywhere()
    images = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    plain = graph(network, SHAPE).map(Tensor.detach)
    labels = plain(images).argmax(1)
    found = []
    for reduced in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            if name == "certify":
                rows = certify(network, images, labels, EPS, CertifySettings(verifier="zeng")).rows
                found.append([(row.certified, row.attacked) for row in rows])
            else:
                bounds = BOUNDS[name](plain, images, EPS, margin_rows(labels, 3))
                found.append(bounds.lower(EPS).tolist() if name == "planes" else bounds.lower.tolist())
    assert found[0] == found[1]


PRODUCTS = ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
SHAPE, EPS = (3, 8, 8), 0.03


class Products(TorchDispatchMode):
    """Notes every product of tensors, whoever computes it, and whether it was in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, bool]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0].rstrip("_")
        if name in PRODUCTS and not args[0].is_meta:  # tensors without numbers are asked for their shapes
            self.seen.add((name, switches() == TRUE))
        return func(*args, **(kwargs or {}))


def with_products_everywhere() -> nn.Sequential:
    """Normalisation before a padded layer and before a linear one, where folding computes products, too."""
    torch.manual_seed(0)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    features = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(256)
    return nn.Sequential(Normalize(mean, std), *features, nn.Linear(256, 9), nn.ReLU(), nn.Linear(9, 3)).eval()


def whole_cascade(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    stages = certify(network, images, labels, EPS, CertifySettings(group_size=4, budget=0.2)).stage_seconds
    assert set(stages) == {"interval", "crown", "alpha", "attack", "search", "joint"}


TESTS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "graph": lambda network, images, labels: graph(network, SHAPE),
    "certify": whole_cascade,
    "evaluate": lambda network, images, labels: evaluation.evaluate(network, images, labels, EPS, group_size=4),
    "predictions": lambda network, images, labels: evaluation.predictions(network, images),
}


def planes(plain: Graph, images: Tensor, eps: float, spec: Tensor) -> Planes:
    """With boxes that no product was needed for."""
    boxes = [Box(torch.zeros(2, *shape), torch.ones(2, *shape)) for shape in map(plain.shape_of, plain.relu_inputs)]
    return lower_planes(plain, images, torch.full_like(images[:1], eps), spec, boxes)


BOUNDS: dict[str, Callable[..., Any]] = {"interval": interval, "crown": crown, "alpha": alpha, "planes": planes}


@pytest.mark.parametrize("where", ["by hand", "in a training step"])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_is_in_float32_whatever_torch_is_set_to(name: str, where: str) -> None:
    """Torch's own switches, on for convolutions from the start, do not reach a bound: somebody may call it a proof."""
    plain = graph(with_products_everywhere(), SHAPE).map(Tensor.detach)
    images = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    spec = margin_rows(plain(images).argmax(1), 3)
    torch.set_float32_matmul_precision("high")
    try:
        assert switches()[:2] == FAST
        with tf32(True) if where == "in a training step" else nullcontext(), Products() as products:
            BOUNDS[name](plain, images, EPS, spec)
        assert switches()[:2] == FAST
    finally:
        torch.set_float32_matmul_precision("highest")
    assert {exact for _, exact in products.seen} == {True}


BOUNDING = [name for name, method in METHODS.items() if method.certified]


@pytest.mark.parametrize("max_boxes", [1 << 30, 3], ids=["kept", "computed again"])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", BOUNDING)
def test_a_training_step_bounds_in_the_precision_that_it_asks_for(name: str, fast: bool, max_boxes: int) -> None:
    """In the backward pass, too, where boxes that did not fit in memory are bounded again."""
    network = with_products_everywhere().train()
    images = torch.rand(10, *SHAPE, generator=torch.Generator().manual_seed(0))
    labels, traced = torch.arange(10) % 3, trace(network, SHAPE)
    logits, statistics = traced.forward_with_statistics(images)
    clean = torch.nn.functional.cross_entropy(logits, labels)
    batch = Batch(images, labels, clean, fold(traced, statistics), EPS, False, max_boxes=max_boxes, ramping=True)
    with tf32(fast), Products() as products:
        METHODS[name]().loss(batch).loss.backward(retain_graph=True)
    assert {exact for _, exact in products.seen} == {not fast}
    assert "convolution_backward" in {product for product, _ in products.seen}


@pytest.mark.parametrize("name", TESTS)
def test_every_product_behind_a_proof_is_in_float32(name: str) -> None:
    """In folding, too: what is proved is proved of the folded network. And an attack in TF32 could seem to break what
    is proved in float32, by a margin smaller than the rounding."""
    network = with_products_everywhere()
    images = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0))
    labels = network(images).argmax(1)
    with tf32(True), Products() as products:
        TESTS[name](network, images, labels)
        assert switches()[:2] == FAST
    seen = {product for product, _ in products.seen}
    assert products.seen == {(product, True) for product in seen} != set()
    assert ("convolution_backward" in seen) == (name in ("certify", "evaluate"))  # attacks and slopes


def test_a_weight_next_to_nothing_costs_the_others_nothing() -> None:
    """Folded into float32 a weight of 1e-39 is off by a large share of itself; of its layer that share is nothing."""
    network = nn.Sequential(Normalize((0.1,), (0.3,)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    with torch.no_grad():
        network[1].weight[0, 0, 0, 0] = 1e-39  # type: ignore[operator, index]
    plain = graph(network.eval(), (1, 6, 6)).map(Tensor.detach)
    first = plain.nodes[0].op
    assert isinstance(first, Conv)
    assert 0 < first.off < 1e-6
    assert 0 < first.stray < 1e-37
    x = torch.rand(2, 1, 6, 6)
    without = replace(plain, nodes=(replace(plain.nodes[0], op=replace(first, stray=0.0)), *plain.nodes[1:]))
    torch.testing.assert_close(interval(plain, x, 0.1).lower, interval(without, x, 0.1).lower)


@pytest.mark.parametrize("bound", [interval, crown, alpha])
def test_a_weight_next_to_nothing_may_meet_something_huge(bound: Callable[..., Bounds]) -> None:
    """1e-39 with a factor of 0.3 folded in, times 1e38 x: what rounding the weight changes is not lost."""
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2), nn.BatchNorm1d(2, eps=0.0), nn.Linear(2, 2)
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network[1].weight.fill_(1e38)  # type: ignore[operator, union-attr]
        network[3].weight[0] = 1e-39  # type: ignore[operator, index]
        network[4].weight.fill_(0.3)  # type: ignore[operator, union-attr]
        network[5].weight.copy_(torch.eye(2))  # type: ignore[operator]
    x, tiny = torch.full((1, 1, 1, 1), 0.5), network[3].weight[0, 0]  # type: ignore[index]
    plain = graph(network.eval(), (1, 1, 1)).map(Tensor.detach)
    found = bound(plain, x, 0.0, margin_rows(torch.tensor([0]), 2))
    factors = (0.5, torch.tensor(1e38).item(), tiny.item(), torch.tensor(0.3).item())
    true = math.prod(map(Fraction, factors))
    folded = Fraction(plain.nodes[3].op.weight[0, 0].item())  # type: ignore[union-attr]
    assert folded != Fraction(tiny.item()) * Fraction(torch.tensor(0.3).item())
    assert Fraction(found.lower.item()) <= true <= Fraction(found.upper.item())
