"""Convolutions as matrix products, which proofs on a GPU take, are what torch computes."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from support.helpers import ZOO, Case, folded, images
from torch import Tensor

from citrus.attacks import Ascent, pgd
from citrus.bounds import AlphaSettings, Bounds, alpha, crown, interval, margin_rows
from citrus.bounds.rounding import gamma
from citrus.networks import Graph, convolution
from citrus.networks.convolution import Pair, convolve, reach, spread
from citrus.networks.kernels import plain_sums, searching, true_float32

KINDS = [
    (stride, padding, dilation, groups, kernel)
    for stride, padding, dilation, groups, kernel in product(
        [(1, 1), (2, 2), (2, 3)], [(0, 0), (1, 2)], [(1, 1), (1, 2)], [1, 2, 4], [(3, 3), (2, 4), (1, 1)]
    )
]


def elsewhere(x: Tensor) -> bool:
    """As if these numbers were on a GPU, in a proof."""
    return True


def drawn(groups: int, kernel: Pair, into: int = 4) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(0)
    weight = torch.randn(8, into // groups, *kernel, generator=noise, dtype=torch.float64)
    return weight, torch.randn(3, into, 9, 10, generator=noise, dtype=torch.float64)


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups", "kernel"), KINDS)
def test_both_ways_agree(
    stride: Pair, padding: Pair, dilation: Pair, groups: int, kernel: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = drawn(groups, kernel)
    true = F.conv2d(x, weight, weight[:, 0, 0, 0], stride, padding, dilation, groups)
    rows = torch.randn(true.shape, generator=torch.Generator().manual_seed(1), dtype=true.dtype)
    back = F.conv_transpose2d(rows, weight, None, stride, 0, 0, groups, dilation)
    assert tuple(back.shape[2:]) == reach((rows.shape[2], rows.shape[3]), weight, stride, dilation)
    for _ in range(2):
        torch.testing.assert_close(convolve(x, weight, weight[:, 0, 0, 0], stride, padding, dilation, groups), true)
        torch.testing.assert_close(spread(rows, weight, stride, dilation, groups), back)
        monkeypatch.setattr(convolution, "plain_sums", elsewhere)


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel (1, 10) over (1, 2, 3) with stride 2 sees (1, 2) only."""
    monkeypatch.setattr(convolution, "plain_sums", elsewhere)
    x, weight = torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.tensor([[[[1.0, 10.0]]]])
    assert convolve(x, weight, torch.tensor([0.5]), (1, 2), (0, 0), (1, 1), 1).tolist() == [[[[21.5]]]]
    assert spread(torch.tensor([[[[1.0, 2.0]]]]), weight, (1, 2), (1, 1), 1).tolist() == [[[[1.0, 10.0, 2.0, 20.0]]]]


def test_an_empty_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "plain_sums", elsewhere)
    weight, x = drawn(2, (3, 3))
    assert convolve(x[:0], weight, None, (2, 2), (1, 1), (1, 1), 2).shape == (0, 8, 5, 5)
    assert spread(x.new_zeros(0, 8, 5, 5), weight, (2, 2), (1, 1), 2).shape == (0, 4, 11, 11)


def test_where_it_is_taken() -> None:
    """Not on a CPU, not in training or while slopes and perturbations are searched for, but in every proof."""
    gpu, cpu = torch.empty(1, device="meta"), torch.empty(1)
    assert not plain_sums(gpu)
    with true_float32():
        assert plain_sums(gpu)
        assert not plain_sums(cpu)
        with searching():
            assert not plain_sums(gpu)
        assert plain_sums(gpu)
    assert not plain_sums(gpu)


def problem(case: Case) -> tuple[Graph, Tensor, Tensor]:
    plain, x = folded(case), images(3)
    return plain, x, margin_rows(plain(x).argmax(1), plain.classes)


@pytest.mark.parametrize("bound", [interval, crown])
@pytest.mark.parametrize("case", ZOO, ids=str)
def test_bounds_are_the_same(case: Case, bound: Callable[..., Bounds], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, x, spec = problem(case)
    usual = bound(plain, x, 0.05, spec)
    monkeypatch.setattr(convolution, "plain_sums", elsewhere)
    torch.testing.assert_close(bound(plain, x, 0.05, spec).lower, usual.lower, rtol=1e-3, atol=1e-4)


def test_what_is_searched_for_takes_any_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack's own passes and a climb are judged afterwards."""
    plain, x, spec = problem(next(case for case in ZOO if "conv" in str(case)))
    labels, asked = plain(x).argmax(1), list[bool]()
    monkeypatch.setattr(convolution, "plain_sums", lambda x: asked.append(plain_sums(x.to("meta"))) or False)
    with true_float32():
        pgd(plain, x, labels, 0.05, Ascent(steps=2))
    assert asked
    assert not any(asked)
    asked.clear()
    crown(plain, x, 0.05, spec)
    assert asked
    assert all(asked)
    asked.clear()
    alpha(plain, x, 0.05, spec, AlphaSettings(iterations=1))
    assert len(set(asked)) == 2  # the climb, and the planes at the slopes that it found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_rounds_no_more_than_a_sum_of_products_may() -> None:
    noise = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 64, 3, 3, generator=noise), torch.randn(4, 64, 32, 32, generator=noise)
    with true_float32():
        ours = convolve(x.cuda(), weight.cuda(), None, (1, 1), (1, 1), (1, 1), 1).cpu().double()
        back = spread(x.cuda(), weight.cuda(), (1, 1), (1, 1), 1).cpu().double()
    true, size = (F.conv2d(a.double(), b.double(), padding=1) for a, b in ((x, weight), (x.abs(), weight.abs())))
    assert ((ours - true).abs() <= gamma(576, torch.float32) * size).all()
    true, size = (F.conv_transpose2d(a.double(), b.double()) for a, b in ((x, weight), (x.abs(), weight.abs())))
    assert ((back - true).abs() <= gamma(576, torch.float32) * size).all()
