"""Bounds are true in real arithmetic: on tiny networks in exact numbers, and on a machine that rounds worse than
any."""

from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction

import pytest
import torch
from torch import Tensor
from trial.exact import Step, exact, pieces_of
from trial.instances import KINDS, Instance
from trial.noise import coarse

from citrus.bounds import (
    AlphaSettings,
    Box,
    LinearSettings,
    alpha,
    crown,
    interval,
    lower_planes,
    margin_rows,
    rounding,
)
from citrus.bounds.chunks import MemoryLimit
from citrus.certify.refine.tightening import NeuronPlanes, Violated, tighten
from citrus.certify.search.planes import dual_value
from citrus.networks import Graph, graph

SHOWN = 6  # images of an instance
Found = tuple[Tensor, Tensor | None]


def with_random_slopes(plain: Graph, x: Tensor, eps: float, spec: Tensor) -> Found:
    boxes = crown(plain, x, eps, spec).pre_activations
    slopes = [torch.rand(b.centre.shape, generator=torch.Generator().manual_seed(0)).to(x) for b in boxes]
    radius = torch.full_like(x[:1], eps).double()
    return lower_planes(plain, x, radius.to(x) * (1 + 1e-6), spec, boxes, slopes).lower(eps), None


def linear(**settings: object) -> Callable[[Graph, Tensor, float, Tensor], Found]:
    def bound(plain: Graph, x: Tensor, eps: float, spec: Tensor) -> Found:
        found = crown(plain, x, eps, spec, LinearSettings(**settings))  # type: ignore[arg-type]
        return found.lower, found.upper

    return bound


def both(bound: Callable[..., object]) -> Callable[[Graph, Tensor, float, Tensor], Found]:
    def ends(plain: Graph, x: Tensor, eps: float, spec: Tensor) -> Found:
        found = bound(plain, x, eps, spec)
        return found.lower, found.upper  # type: ignore[attr-defined]

    return ends


BOUNDS: dict[str, Callable[[Graph, Tensor, float, Tensor], Found]] = {
    "interval": both(interval),
    "crown": linear(),
    "crown without intervals": linear(intersect=False),
    "crown on interval boxes": linear(intersect=False, intermediate="interval"),
    "alpha": both(lambda *given: alpha(*given, AlphaSettings(iterations=4))),
    "planes": with_random_slopes,
}


def ends_of(steps: tuple[Step, ...], instance: Instance, image: int) -> list[tuple[Fraction, Fraction]]:
    """The least and the largest that each value behind some steps is on the box of an image."""
    found: list[tuple[Fraction, Fraction]] = []
    for pieces in pieces_of(steps, exact(instance.images[image]), Fraction(instance.eps)):
        for piece in pieces:
            for k, (a, b, c) in enumerate(piece.values):
                values = [Fraction(a * x + b * y + c * w, w * piece.scale) for x, y, w in piece.polygon]
                low, high = (*found[k], *values) if k < len(found) else values, values
                if k < len(found):
                    found[k] = min(found[k][0], *values), max(found[k][1], *values)
                else:
                    found.append((min(low), max(high)))
    return found


def margins_of(instance: Instance, image: int) -> list[tuple[Fraction, Fraction]]:
    """Of each margin of an image."""
    label, classes = int(instance.labels[image]), instance.steps[-1].size
    rows = [[Fraction(int(k == label) - int(k == j)) for k in range(classes)] for j in range(classes) if j != label]
    return ends_of((*instance.steps, Step(rows, [Fraction(0)] * len(rows))), instance, image)


def holds(instance: Instance, found: Found) -> bool:
    """Whether no lower bound is above the truth, and no upper one below it."""
    ends = [(image, row, *end) for image in range(SHOWN) for row, end in enumerate(margins_of(instance, image))]
    below = not any(float(found[0][image, row]) > low for image, row, low, _ in ends)
    return below and (found[1] is None or not any(float(found[1][image, row]) < high for image, row, _, high in ends))


def instance_of(kind: str, seed: int, dtype: torch.dtype) -> tuple[Instance, Graph, Tensor]:
    instance = Instance.random(kind, seed, dtype)
    plain = graph(instance.network, tuple(instance.images.shape[1:])).map(Tensor.detach)
    return instance, plain, margin_rows(instance.labels[:SHOWN], plain.classes, dtype)


@pytest.mark.parametrize("machine", ["ieee", "coarse"])
@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_bound_is_above_the_truth(kind: str, name: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        dtype = (torch.float32, torch.float64)[seed % 2]
        instance, plain, spec = instance_of(kind, 1000 + seed, dtype)
        with coarse(monkeypatch, seed) if machine == "coarse" else nullcontext():
            found = BOUNDS[name](plain, instance.images[:SHOWN], instance.eps, spec)
        assert holds(instance, found)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_rule_that_forgets_rounding_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above could not fail: on the coarse machine, told that it rounds nothing, every bound is false."""
    for seed in range(30):
        instance, plain, spec = instance_of("wide", seed, torch.float32)
        with coarse(monkeypatch, seed), monkeypatch.context() as told:
            for dtype in rounding.UNIT:
                told.setitem(rounding.UNIT, dtype, 0.0)
            ends = BOUNDS[name](plain, instance.images[:SHOWN], instance.eps, spec)
        if not holds(instance, ends):
            return
    pytest.fail("nothing was false")


@pytest.mark.parametrize("machine", ["ieee", "coarse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_boxes_hold_every_value(machine: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """That enters a ReLU, of networks without branches."""
    for kind in ("plain", "convolution", "batchnorm", "cancelling", "scaled", "wide"):
        instance, plain, _ = instance_of(kind, 50, dtype)
        relus = [k for k, step in enumerate(instance.steps) if step.matrix is None]
        for settings in (LinearSettings(), LinearSettings(intermediate="early"), LinearSettings(intersect=False)):
            with coarse(monkeypatch, 1) if machine == "coarse" else nullcontext():
                boxes = crown(plain, instance.images[:2], instance.eps, None, settings).pre_activations
            assert len(boxes) == len(relus)
            for k, box in zip(relus, boxes, strict=True):
                for image in range(2):
                    centre, radius = exact(box.centre[image]), exact(box.radius[image])
                    ends = ends_of(instance.steps[:k], instance, image)
                    for c, r, (low, high) in zip(centre, radius, ends, strict=True):
                        assert c - r <= low
                        assert high <= c + r


def exact_dual(a: Tensor, b: Tensor, lambdas: Tensor, eps: float) -> Fraction:
    """sum lambda b - eps |sum lambda a|_1."""
    weights = exact(lambdas)
    mixed = [sum(w * v for w, v in zip(weights, exact(column), strict=True)) for column in a.T]
    return sum(w * v for w, v in zip(weights, exact(b), strict=True)) - Fraction(eps) * sum(map(abs, mixed))


@pytest.mark.parametrize("machine", ["ieee", "coarse"])
def test_the_value_of_a_dual_proof_is_below_the_truth(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.Generator().manual_seed(0)
    for case in range(30):
        planes, pixels = 1 + case % 5, 1 + 7 * (case % 4)
        scale = 10 ** (4 * torch.rand(planes, 1, generator=noise, dtype=torch.float64) - 2)
        a = scale * torch.randn(planes, pixels, generator=noise, dtype=torch.float64)
        b, lambdas = scale[:, 0], torch.rand(3, planes, generator=noise, dtype=torch.float64)
        with coarse(monkeypatch, case) if machine == "coarse" else nullcontext():
            value, error = dual_value(a, b, 0.3, lambdas)
            low, high = value - error, value + error
        for k in range(3):
            assert exact(low[k])[0] <= exact_dual(a, b, lambdas[k], 0.3) <= exact(high[k])[0]


@pytest.mark.parametrize("machine", ["ieee", "coarse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tightened_boxes_are_no_tighter_than_the_truth(
    machine: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the multipliers that come along, in exact numbers; nothing else is believed of them than mu >= 0."""
    noise = torch.Generator().manual_seed(0)
    for case in range(6):
        a = torch.randn(3, 20, generator=noise, dtype=torch.float64).to(dtype)
        planes = NeuronPlanes(torch.arange(4), *(torch.randn(4, 2, *s, generator=noise).to(dtype) for s in ((20,), ())))
        member = Violated(
            Box(torch.zeros(4, dtype=dtype), torch.full((4,), 9.0, dtype=dtype)), planes, a, a[:, 0].abs()
        )
        with coarse(monkeypatch, case) if machine == "coarse" else nullcontext():
            ((box, multipliers),) = tighten([member], 0.1, MemoryLimit(10**9))
        for neuron in range(4):
            for side, sign in ((0, 1), (1, -1)):
                mu = multipliers[neuron + 4 * side]
                rows = torch.cat([planes.a[neuron, side][None], a])
                offsets = torch.cat([planes.b[neuron, side][None], a[:, 0].abs()])
                true = exact_dual(rows, offsets, torch.cat([torch.ones(1, dtype=mu.dtype), mu]), 0.1)
                centre, radius = exact(box.centre[neuron])[0], exact(box.radius[neuron])[0]
                assert (mu >= 0).all()
                assert sign * centre - radius <= max(true, Fraction(-9))
