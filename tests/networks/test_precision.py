"""TF32 is off while anything is proved, and as it was afterwards."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from citrus.bounds import Box, Planes, alpha, crown, interval, lower_planes, margin_rows
from citrus.certify import CertifySettings, certify
from citrus.errors import CitrusError
from citrus.methods import METHODS, Batch
from citrus.networks import Graph, Normalize, build, fold, graph, trace
from citrus.networks.kernels import tf32, true_float32
from citrus.training import evaluation


def switches() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
def test_true_float32_whatever_was_set_before(before: str) -> None:
    torch.set_float32_matmul_precision(before)
    try:
        outside = switches()
        with true_float32():
            assert switches() == (False, False)
            with tf32(True):
                assert switches() == (True, True)
            assert switches() == (False, False)
        assert switches() == outside
        with pytest.raises(ZeroDivisionError), true_float32():
            raise ZeroDivisionError
        assert switches() == outside
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.fixture
def set_by_operation() -> Iterator[None]:
    """TF32 by torch's newer switches, which do not go together with those that old code reads."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = "ieee"


@pytest.mark.usefixtures("set_by_operation")
def test_tf32_that_cannot_be_switched_off_is_refused_with_what_to_do() -> None:
    network = build("mlp", (1, 12, 12), 3).eval()
    with pytest.raises(CitrusError, match="set_float32_matmul_precision"):
        graph(network, (1, 12, 12))


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
            self.seen.add((name, switches() == (False, False)))
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
    return lower_planes(plain, images, spec, boxes)


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
        assert switches() == (True, True)
        with tf32(True) if where == "in a training step" else nullcontext(), Products() as products:
            BOUNDS[name](plain, images, EPS, spec)
        assert switches() == (True, True)
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
        assert switches() == (True, True)
    seen = {product for product, _ in products.seen}
    assert products.seen == {(product, True) for product in seen} != set()
    assert ("convolution_backward" in seen) == (name in ("certify", "evaluate"))  # attacks and slopes
