"""Linear bounds by sampling, by their contract on every layer, and in all the ways they may be cut into chunks."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.helpers import CLASSES, DEEP, SHAPE, ZOO, Case, images
from torch import Tensor

from citrus.bounds import Box, LinearBounds, LinearSettings, alpha, crown, interval, lower_planes, margin_rows
from citrus.bounds.chunks import MemoryLimit, in_chunks
from citrus.bounds.linear import InnerBoxes
from citrus.errors import CitrusError
from citrus.networks import graph
from citrus.networks.operations import Conv, Graph

EPS = 0.04


CASES = (*ZOO, *DEEP)
BY_NAME = {case.name: case for case in CASES}


def network(case: Case) -> Graph:
    return graph(case.build().requires_grad_(False), SHAPE)


def rows_of(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return margin_rows(torch.arange(count) % CLASSES, CLASSES, dtype)


SOUND = [(case, "crown") for case in CASES] + [
    (case, how) for case in CASES[len(ZOO) :] for how in ("early", "interval")
]


@pytest.mark.parametrize(("case", "intermediate"), SOUND, ids=str)
def test_sound_on_sampled_points(case: Case, intermediate: InnerBoxes) -> None:
    """10,000 points, half of them corners: rows, inner boxes and planes hold."""
    net, centre, spec = network(case), images(2), rows_of(2)
    bounds = crown(net, centre, EPS, spec, LinearSettings(intermediate, planes=True))
    planes = bounds.lower_planes
    assert planes is not None
    torch.testing.assert_close(planes.lower(EPS), planes.lower(torch.full((1, 1, 1), EPS)))
    generator = torch.Generator().manual_seed(1)
    for image in range(2):
        delta = torch.rand(2500, *SHAPE, generator=generator) * 2 - 1
        delta = torch.cat([delta, delta.sign()]) * EPS
        values = net.values(centre[image] + delta)
        rows = values[-1] @ spec[image].T
        assert (rows >= bounds.lower[image] - 1e-5).all()
        assert (rows <= bounds.upper[image] + 1e-5).all()
        assert (rows >= delta.flatten(1) @ planes.a[image].flatten(1).T + planes.b[image] - 1e-5).all()
        for place, box in zip(net.relu_inputs, bounds.pre_activations, strict=True):
            assert (values[place] >= box.lower[image] - 1e-5).all()
            assert (values[place] <= box.upper[image] + 1e-5).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract(case: Case) -> None:
    """Never looser than intervals, equal to the network at radius 0, one by one as in a batch, float64 as float32."""
    net, centre, spec = network(case), images(3), rows_of(3)
    bounds, cheap = crown(net, centre, EPS, spec), interval(net, centre, EPS, spec)
    assert (bounds.lower >= cheap.lower - 1e-6).all()
    assert (bounds.upper <= cheap.upper + 1e-6).all()
    for box, wide in zip(bounds.pre_activations, cheap.pre_activations, strict=True):
        assert (box.lower >= wide.lower - 1e-6).all()
        assert (box.upper <= wide.upper + 1e-6).all()
    exact = (spec @ net(centre)[..., None]).squeeze(2)
    point = crown(net, centre, 0.0, spec)
    torch.testing.assert_close(point.lower, exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(point.upper, exact, atol=1e-5, rtol=1e-5)
    singles = [crown(net, centre[i : i + 1], EPS, spec[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(bounds.lower, torch.cat([s.lower for s in singles]), atol=1e-5, rtol=1e-5)
    double = crown(net.map(Tensor.double), centre.double(), EPS, spec.double())
    assert double.lower.dtype == torch.double
    torch.testing.assert_close(bounds.lower.double(), double.lower, atol=1e-4, rtol=1e-4)
    small = crown(net, centre, EPS, spec, LinearSettings(memory=1, planes=True))
    large = crown(net, centre, EPS, spec, LinearSettings(memory=10**9, planes=True, upper=False))
    assert small.lower_planes is not None
    assert large.lower_planes is not None
    torch.testing.assert_close(small.lower, large.lower, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(small.lower_planes.a, large.lower_planes.a, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(small.upper, bounds.upper, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["bn after conv and linear", "deep block"])
def test_gradient(name: str) -> None:
    """Gradients to the weights, the centre and the radius agree with finite differences."""
    net = network(BY_NAME[name]).map(lambda t: t.double().requires_grad_())
    spec = rows_of(1, torch.double)
    weights = [node.op.weight for node in net.nodes if isinstance(node.op, Conv)][1]
    centre = images(1, torch.double).requires_grad_()
    radius = torch.full((1, 1, 1), EPS, dtype=torch.double, requires_grad=True)

    def value() -> Tensor:
        return crown(net, centre, radius, spec).lower.sum()

    for tensor in (weights, centre, radius):
        gradient = torch.autograd.grad(value(), tensor)[0]
        assert gradient.isfinite().all()
        direction = torch.randn(tensor.shape, dtype=torch.double, generator=torch.Generator().manual_seed(5))
        step = 1e-7
        with torch.no_grad():
            tensor += step * direction
            up = value()
            tensor -= 2 * step * direction
            down = value()
            tensor += step * direction
        torch.testing.assert_close((gradient * direction).sum(), (up - down) / (2 * step), rtol=1e-4, atol=1e-6)


def test_nan_is_never_certified() -> None:
    net, centre, spec = network(BY_NAME["deep stride"]), images(2), rows_of(2)
    centre[1, 0, 4, 4] = torch.nan
    lower = crown(net, centre, EPS, spec).lower
    assert lower[0].isfinite().all()
    assert not (lower[1] > 0).any()
    broken = [Box(b.centre.clone(), b.radius) for b in interval(net, images(2), EPS).pre_activations]
    broken[-1].centre[1, 0] = torch.nan
    radius = torch.full_like(centre[:1], EPS)
    assert not (lower_planes(net, images(2), radius, spec, broken).lower(EPS)[1] > 0).any()


def test_slopes_outside_the_unit_interval_are_clamped() -> None:
    net, centre, spec = network(BY_NAME["deep stride"]), images(2), rows_of(2)
    boxes = crown(net, centre, EPS, spec).pre_activations
    wild = [torch.full_like(b.centre, 7.0) for b in boxes]
    ones = [torch.ones_like(b.centre) for b in boxes]
    radius = torch.full_like(centre[:1], EPS)
    found = [lower_planes(net, centre, radius, spec, boxes, slopes) for slopes in (wild, ones)]
    assert torch.equal(found[0].b, found[1].b)
    per_row = [s[:, None].expand(-1, 2, *s.shape[1:]) for s in ones]
    torch.testing.assert_close(lower_planes(net, centre, radius, spec, boxes, per_row).a, found[1].a)


def test_one_combined_row_per_image() -> None:
    """With the lines fixed by hand a positive combination of rows is at least the combination of their bounds."""
    net, centre, spec = network(BY_NAME["deep block"]), images(3), rows_of(3)
    bounds = crown(net, centre, EPS, spec, LinearSettings(planes=True, intersect=False))
    weights = images(3, shape=(2,)).softmax(1)
    mixed, radius = (weights[..., None] * spec).sum(1, keepdim=True), torch.full_like(centre[:1], EPS)
    combined = lower_planes(net, centre, radius, mixed, bounds.pre_activations)
    assert combined.a.shape == (3, 1, *SHAPE)
    assert bounds.lower_planes is not None
    apart = (weights * bounds.lower_planes.b).sum(1)
    assert (combined.b[:, 0] >= apart - 1e-5).all()


def test_memory_that_runs_out_halves_the_chunks() -> None:
    sizes: list[int] = []

    def work(images: slice, rows: slice) -> tuple[Tensor, ...]:
        pairs = torch.cartesian_prod(torch.arange(6)[images], torch.arange(5)[rows]).view(
            images.stop - images.start, rows.stop - rows.start, 2
        )
        sizes.append(pairs.shape[0] * pairs.shape[1])
        if sizes[-1] > 3:
            raise errors.pop() if errors else RuntimeError("DefaultCPUAllocator: can't allocate memory: 99 bytes")
        return (pairs,)

    errors: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory")]
    budget = MemoryLimit(10**6)
    (result,) = in_chunks((6, 5), 8, budget, work)
    assert torch.equal(result.flatten(0, 1), torch.cartesian_prod(torch.arange(6), torch.arange(5)))
    assert budget.bytes < 10**6
    assert sizes[0] == 30

    def broken(images: slice, rows: slice) -> tuple[Tensor, ...]:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        in_chunks((2, 2), 8, MemoryLimit(100), broken)


@pytest.mark.parametrize("case", CASES[len(ZOO) :], ids=str)
def test_early_boxes_are_crowns_for_two_layers_and_intervals_behind(case: Case) -> None:
    net, centre, spec = network(case), images(2), rows_of(2)
    crowns, early, plain = (
        crown(net, centre, EPS, spec, LinearSettings(how)).pre_activations for how in ("crown", "early", "interval")
    )
    for layer, (tight, mine, wide) in enumerate(zip(crowns, early, plain, strict=True)):
        if layer < 2:
            assert torch.equal(mine.lower, tight.lower)
            assert torch.equal(mine.upper, tight.upper)
        assert bool((mine.upper <= wide.upper + 1e-5).all())
        assert bool((mine.lower >= wide.lower - 1e-5).all())
    assert bool((early[1].radius < plain[1].radius).any())
    assert bool((early[-1].radius > crowns[-1].radius).any())


@pytest.mark.parametrize("bound", [crown, alpha])
def test_negative_radius_tensor_never_certifies(bound: Callable[..., LinearBounds]) -> None:
    net, centre, spec = network(BY_NAME["mlp"]), images(2), rows_of(2)
    radius = torch.full_like(centre, 0.01)
    radius[0, 0, 0, 0] = -5.0
    lower = bound(net, centre, radius, spec).lower
    assert not bool((lower[0] > 0).any())
    assert lower[1].isfinite().all()


def test_mistakes_are_named() -> None:
    net, centre, spec = network(BY_NAME["mlp"]), images(1), rows_of(1)
    with pytest.raises(CitrusError, match="negative"):
        crown(net, centre, -0.1, spec)
    with pytest.raises(CitrusError, match="shape"):
        crown(net, F.pad(centre, (1, 0)), 0.1, spec)
    with pytest.raises(CitrusError, match="crown, early or interval"):
        LinearSettings(intermediate="ibp")  # type: ignore[arg-type]
    with pytest.raises(CitrusError, match="memory"):
        crown(net, centre, 0.1, spec, LinearSettings(memory=0))
    boxes = crown(net, centre, 0.1, spec).pre_activations
    with pytest.raises(CitrusError, match="2 ReLU layers"):
        lower_planes(net, centre, centre[:1], spec, boxes, [torch.ones(1, 5)])
    with pytest.raises(CitrusError, match="Slopes of ReLU 1"):
        lower_planes(net, centre, centre[:1], spec, boxes, [torch.ones(1, 5), torch.ones(1, 5)])
