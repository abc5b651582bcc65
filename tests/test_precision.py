"""TF32 is off while anything is proved, and as it was afterwards."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from citrus.errors import CitrusError
from citrus.networks import build, graph
from citrus.networks.precision import tf32, true_float32
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


def test_what_an_evaluation_compares_is_all_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack in TF32 could seem to break what is proved in float32, by a margin smaller than the rounding."""
    seen: dict[str, set[tuple[bool, bool]]] = {}

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.setdefault(name, set()).add(switches())
            return function(*args, **kwargs)

        return call

    parts = ("interval", "pgd", "universal_pgd", "fooled")
    for name in parts:
        monkeypatch.setattr(evaluation, name, watched(name, getattr(evaluation, name)))
    network = build("mlp", (1, 12, 12), 3).eval()
    monkeypatch.setattr(network, "forward", watched("forward", network.forward))
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(4, 1, 12, 12, generator=generator), torch.tensor([0, 1, 2, 0])
    with tf32(True):
        evaluation.evaluate(network, images, labels, 0.01, group_size=2)
        assert switches() == (True, True)
    assert seen == {name: {(False, False)} for name in (*parts, "forward")}
    seen.clear()
    with tf32(True):
        evaluation.clean_accuracy(network, images, labels)
    assert seen == {"forward": {(False, False)}}
