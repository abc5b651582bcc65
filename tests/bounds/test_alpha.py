"""Optimised slopes: never below CROWN, sound, the same in batches and chunks, and the slopes give the bounds again."""

from dataclasses import replace

import pytest
import torch
from support.helpers import CLASSES, SHAPE, ZOO, Case, images
from torch import Tensor, nn

from citrus.bounds import AlphaSettings, LinearBounds, LinearSettings, alpha, crown, lower_planes, margin_rows
from citrus.errors import CitrusError
from citrus.networks import Graph, graph

EPS = 0.12
LINEAR = LinearSettings(planes=True, intersect=False)
PER_ROW = AlphaSettings(iterations=12, linear=LINEAR)
CASES = [c for c in ZOO if c.relus > 1]


def _spec(count: int) -> Tensor:
    return margin_rows(torch.arange(count) % CLASSES, CLASSES)


def _deep() -> list[nn.Module]:
    body = [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2), nn.ReLU(), nn.Flatten()]
    return [*body, nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, CLASSES)]


DEEP = Case("deep", _deep, 3)


def _network(case: Case = DEEP) -> Graph:
    return graph(case.build().requires_grad_(False), SHAPE)


def _check_sound(net: Graph, centre: Tensor, spec: Tensor, bounds: LinearBounds) -> None:
    planes = bounds.lower_planes
    assert planes is not None
    generator = torch.Generator().manual_seed(1)
    for image in range(len(centre)):
        delta = torch.rand(2500, *SHAPE, generator=generator) * 2 - 1
        delta = torch.cat([delta, delta.sign()]) * EPS
        values = net.values(centre[image] + delta)
        rows = values[-1] @ spec[image].T
        assert (rows >= bounds.lower[image] - 1e-5).all()
        assert (rows >= delta.flatten(1) @ planes.a[image].flatten(1).T + planes.b[image] - 1e-4).all()
        for place, box in zip(net.relu_inputs, bounds.pre_activations, strict=True):
            assert (values[place] >= box.lower[image] - 1e-5).all()
            assert (values[place] <= box.upper[image] + 1e-5).all()


@pytest.mark.parametrize("case", [*CASES[::3], DEEP], ids=str)
def test_never_below_crown_and_sound(case: Case) -> None:
    net, centre, spec = _network(case), images(2), _spec(2)
    first = crown(net, centre, EPS, spec, LINEAR)
    bounds = alpha(net, centre, EPS, spec, PER_ROW)
    assert (bounds.lower >= first.lower).all()
    assert torch.equal(bounds.upper, first.upper)
    _check_sound(net, centre, spec, bounds)
    assert bounds.slopes
    again = lower_planes(net, centre, torch.full_like(centre[:1], EPS), spec, bounds.pre_activations, bounds.slopes)
    undecided = ~(first.lower > 0)
    torch.testing.assert_close(again.lower(EPS)[undecided], bounds.lower[undecided], atol=1e-5, rtol=1e-5)
    assert all(((s >= 0) & (s <= 1)).all() for s in bounds.slopes)


def test_the_search_pays() -> None:
    """On a network where it matters: more steps give more."""
    net, centre, spec = _network(), images(6), _spec(6)
    plain = crown(net, centre, EPS, spec, LINEAR).lower
    some = alpha(net, centre, EPS, spec, replace(PER_ROW, iterations=3)).lower
    more = alpha(net, centre, EPS, spec, replace(PER_ROW, iterations=30)).lower
    open_rows = ~(plain > 0)
    assert open_rows.sum() > 4
    values = [v[open_rows].clamp(max=0).mean() for v in (plain, some, more)]
    assert values[0] < values[1] < values[2]


def test_no_iterations_is_crown() -> None:
    net, centre, spec = _network(), images(2), _spec(2)
    bounds = alpha(net, centre, EPS, spec, AlphaSettings(iterations=0))
    torch.testing.assert_close(bounds.lower, crown(net, centre, EPS, spec).lower)


def test_batch_chunks_and_precision_do_not_matter() -> None:
    net, centre, spec = _network(), images(3), _spec(3)
    settings = replace(PER_ROW, iterations=4)
    bounds = alpha(net, centre, EPS, spec, settings)
    singles = [alpha(net, centre[i : i + 1], EPS, spec[i : i + 1], settings).lower for i in range(3)]
    torch.testing.assert_close(bounds.lower, torch.cat(singles), atol=1e-4, rtol=1e-4)
    small = alpha(net, centre, EPS, spec, replace(settings, linear=replace(LINEAR, memory=200_000)))
    torch.testing.assert_close(bounds.lower, small.lower, atol=1e-4, rtol=1e-4)
    double = alpha(net.map(Tensor.double), centre.double(), EPS, spec.double(), settings)
    torch.testing.assert_close(bounds.lower.double(), double.lower, atol=1e-3, rtol=1e-3)


def test_rows_that_are_proved_are_left_alone() -> None:
    net, centre, spec = _network(), images(8), _spec(8)
    tiny = alpha(net, centre, 0.002, spec, PER_ROW)
    first = crown(net, centre, 0.002, spec, LINEAR)
    proved = first.lower > 0
    assert proved.any()
    assert torch.equal(tiny.lower[proved], first.lower[proved])
    without = alpha(net, centre, EPS, spec, replace(PER_ROW, linear=LinearSettings()))
    assert without.lower_planes is None


def test_gradient_at_the_slopes_found() -> None:
    """In float64, against finite differences with the slopes held."""
    net = _network().map(lambda t: t.double().requires_grad_())
    centre, spec = images(2, torch.double), _spec(2).double()
    weight = net.nodes[2].op.weight  # type: ignore[union-attr]
    bounds = alpha(net, centre, EPS, spec, replace(PER_ROW, linear=LinearSettings(intersect=False)))
    gradient = torch.autograd.grad(bounds.lower.sum(), weight)[0]
    assert gradient.isfinite().all()
    assert bounds.slopes
    direction = torch.randn(weight.shape, dtype=torch.double, generator=torch.Generator().manual_seed(5))

    def value() -> Tensor:
        boxes = crown(net, centre, EPS, spec, LINEAR).pre_activations
        radius = torch.full_like(centre[:1], EPS)
        return lower_planes(net, centre, radius, spec, boxes, bounds.slopes).lower(radius).sum()

    with torch.no_grad():
        weight += 1e-7 * direction
        up = value()
        weight -= 2e-7 * direction
        down = value()
    torch.testing.assert_close((gradient * direction).sum(), (up - down) / 2e-7, rtol=1e-4, atol=1e-6)


def test_works_inside_no_grad_and_inference_without_relus_and_rows() -> None:
    net, centre, spec = _network(), images(2), _spec(2)
    with torch.no_grad():
        inside = alpha(net, centre, EPS, spec, PER_ROW)
    torch.testing.assert_close(inside.lower, alpha(net, centre, EPS, spec, PER_ROW).lower)
    scores = alpha(net, centre, EPS)
    assert scores.lower.shape == (2, CLASSES)
    linear = _network(ZOO[0])
    torch.testing.assert_close(alpha(linear, centre, EPS, spec).lower, crown(linear, centre, EPS, spec).lower)


def test_nan_is_never_certified() -> None:
    net, centre, spec = _network(), images(2), _spec(2)
    centre[1, 0, 0, 0] = torch.nan
    lower = alpha(net, centre, EPS, spec, PER_ROW).lower
    assert lower[0].isfinite().all()
    assert not (lower[1] > 0).any()


def test_mistakes_are_named() -> None:
    with pytest.raises(CitrusError, match="iterations must be at least 0, got -1"):
        AlphaSettings(iterations=-1)
    with pytest.raises(CitrusError, match="rate must be finite and larger than 0, got nan"):
        AlphaSettings(rate=float("nan"))
