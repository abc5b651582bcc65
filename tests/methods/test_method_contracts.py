"""What the training loop relies on, for every method in the table of test_methods.py.

Losses grow with eps and do not depend on the order of the batch, bounds hold at attacked points, state is kept in
place, and nothing asks the device for a value, so that a step can be recorded.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.steps import CLASSES, EPS, SHAPE, BoxSpy, gradients, make_batch, make_network
from support.steps import one_thread as one_thread
from test_methods import BOUNDING, CASES, batch_of, every_case
from torch import Tensor, nn

from citrus.attacks import Ascent, ascend, pgd
from citrus.bounds import margin_loss
from citrus.methods import IBP, UAT, AnyMethod, Batch, Citrus, Colt, CrownIBP, Shared, Standard
from citrus.networks import fold

STATEFUL = [name for name, method in CASES.items() if method.initial_state(make_batch(make_network()[1]).graph)]
stateful_case = pytest.mark.parametrize("name", STATEFUL)


def moments(method: AnyMethod) -> list[tuple[int, bool]]:
    """Stage and whether eps grows: the beginning of a run, and every stage from there."""
    stages = sorted({method.stage(step / 100) for step in range(100)})
    return [(stages[0], True), *((stage, False) for stage in stages)]


def backward(network: nn.Module, loss: Tensor) -> None:
    """As the loop does it: what a method does on the way back happens, too."""
    loss.backward(retain_graph=True)
    network.zero_grad()


# ------------------------------------------------------------------------------------------------------ growth, order


@every_case
@pytest.mark.parametrize("clip", [False, True])
def test_the_loss_grows_with_eps(name: str, clip: bool) -> None:
    network, traced = make_network()
    losses = []
    for eps in (0.01, 0.03, 0.1):
        batch = batch_of(name, traced, eps=eps, clip=clip)
        for _ in range(3):  # a perturbation that is kept from step to step has to get somewhere first
            loss = CASES[name].loss(batch).loss
            backward(network, loss)
        losses.append(loss.item())
    if isinstance(CASES[name], Standard):
        assert len(set(losses)) == 1
    else:
        assert all(a < b for a, b in pairwise(losses)), losses


def reorderings(method: AnyMethod) -> list[list[int]]:
    """Orders of six images that must not change the loss, when all images are attacked from the same start.

    Images that exchange or share a perturbation stay together, and where partners are drawn by turning a circle, the
    circle stays. Sets drawn from a random order are drawn by place: for them every order is another draw.
    """
    if isinstance(method, Citrus) and method.partners:
        return [] if method.k > 2 else [[5, 3, 4, 1, 2, 0]] if method.group_size == 3 else [[2, 3, 4, 5, 0, 1]]
    if isinstance(method, Citrus | Shared) and 3 in (getattr(method, f, 0) for f in ("group_size", "heap_size")):
        return [[5, 3, 4, 1, 2, 0], [0, 2, 1, 3, 4, 5]]
    return [[5, 4, 3, 2, 1, 0], [2, 0, 5, 1, 4, 3]]


@pytest.mark.parametrize(
    ("name", "order"), [(name, order) for name, method in CASES.items() for order in reorderings(method)]
)
def test_the_order_of_the_batch_does_not_matter(name: str, order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    network, traced = make_network()
    first = batch_of(name, traced)
    images, labels = first.images[order], first.labels[order]
    logits, statistics = traced.forward_with_statistics(images)
    other = replace(
        batch_of(name, traced),
        images=images,
        labels=labels,
        clean_loss=F.cross_entropy(logits, labels),
        graph=fold(traced, statistics),
    )
    same_noise_in_every_row(monkeypatch)
    losses = [CASES[name].loss(batch).loss for batch in (first, other)]
    torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-9)
    for a, b in zip(*(gradients(network, loss) for loss in losses), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def same_noise_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rand, uniform_ = torch.rand, Tensor.uniform_

    def one_row(*shape: Any, **options: Any) -> Tensor:
        size = shape[0] if isinstance(shape[0], tuple) else shape
        return rand(size[1:], **options).expand(size).clone()

    monkeypatch.setattr(torch, "rand", one_row)
    monkeypatch.setattr(Tensor, "uniform_", lambda x, **options: x.copy_(uniform_(x[0].clone(), **options)))


# ------------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("name", [name for name in BOUNDING if "shrink" not in name])
@pytest.mark.parametrize("clip", [False, True])
def test_bounds_hold_at_100_attacked_points_of_each_box(name: str, clip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _, traced = make_network()
    batch = batch_of(name, traced, clip=clip)
    spy = BoxSpy(monkeypatch)
    CASES[name].loss(batch)
    assert spy.asked
    for lower, upper, (spec, worst) in zip(spy.lower, spy.upper, spy.asked, strict=True):
        seen = attacked_losses(batch, (upper + lower) / 2, (upper - lower) / 2, spec, worst)
        assert len(seen) == 100
        assert torch.equal(lower, upper) or max(seen) > seen[0], "the attack gets somewhere"


def attacked_losses(batch: Batch, centre: Tensor, radius: Tensor, spec: Tensor, worst: Tensor) -> list[float]:
    """Mean losses at 100 points of each box, ten steps from ten starts, none of them worse than its bound."""
    frozen, seen = batch.frozen(), []

    def objective(share: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        margins = torch.einsum("brc,bc->br", spec, frozen(centre + share * radius))
        losses = margin_loss(margins)
        assert (margins >= worst - 1e-9).all()
        assert (losses <= margin_loss(worst) + 1e-9).all()
        seen.append(losses.mean().item())
        return losses, losses

    generator = torch.Generator().manual_seed(0)

    def start() -> Tensor:
        return 2 * torch.rand(centre.shape, generator=generator, dtype=centre.dtype) - 1

    ascend(start, objective, 1.0, Ascent(steps=9, restarts=10))
    return seen


@pytest.mark.parametrize("name", [name for name, method in CASES.items() if isinstance(method, IBP | CrownIBP)])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("moment", [(0.3, True), (1.0, False)])
def test_a_bound_on_the_whole_eps_box_is_at_least_the_loss_under_attack(
    name: str, clip: bool, moment: tuple[float, bool]
) -> None:
    """Of methods whose loss as a whole is a bound: for 100 perturbations of each image, ten steps from ten starts."""
    _, traced = make_network()
    batch = replace(batch_of(name, traced, clip=clip), ramp=moment[0], ramping=moment[1])
    loss = CASES[name].loss(batch).loss
    frozen, attacked = batch.frozen(), []

    def model(points: Tensor) -> Tensor:
        logits = frozen(points)
        attacked.append(F.cross_entropy(logits, batch.labels).detach())
        return logits

    pgd(*(model, batch.images, batch.labels, EPS, Ascent(steps=9, restarts=10)), clip=clip, generator=batch.generator)
    assert len(attacked) == 100
    assert max(attacked) <= loss + 1e-9
    assert max(attacked) > batch.clean_loss


# -------------------------------------------------------------------------------------------- what the loop hands over


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eps_and_ramp_may_be_tensors(name: str, dtype: torch.dtype) -> None:
    """0-dimensional and float64 whatever the network is, as the loop's are: the same loss, and no other type."""
    network, traced = make_network(dtype=dtype)
    results = []
    for convert in (float, lambda value: torch.tensor(value, dtype=torch.float64)):
        batch = replace(batch_of(name, traced), eps=convert(EPS), ramp=convert(0.7), ramping=True)
        results.append(CASES[name].loss(batch))
    first, second = (result.loss for result in results)
    assert second.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)
    for a, b in zip(gradients(network, first), gradients(network, second), strict=True):
        torch.testing.assert_close(a, b, rtol=100 * tolerance, atol=100 * tolerance)
    for result in results:
        assert result.boxes is None or result.boxes.input_radius.dtype == dtype


@every_case
@pytest.mark.parametrize("clip", [False, True])
def test_attacks_may_run_in_half_precision(name: str, clip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # The CPU library behind torch dies of the gradient of a bfloat16 convolution on some machines.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    network, traced = make_network(dtype=torch.float32)
    full, half = (CASES[name].loss(replace(batch_of(name, traced, clip=clip), half=h)).loss for h in (False, True))
    assert half.dtype == torch.float32
    assert half.isfinite()
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients(network, half))
    torch.testing.assert_close(half, full, rtol=0.2, atol=0.0)


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x.sum().item(),
        lambda x: x[0] if x.sum() > 0 else x[1],
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x + torch.ones(6),
    ],
)
def test_the_meta_device_answers_no_questions(asks: Callable[[Tensor], object]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        asks(torch.empty(6, device="meta"))


@every_case
def test_no_loss_asks_the_device_for_a_value(name: str) -> None:
    """A recorded step must not. On the meta device there are no values, so that what asks for one fails."""
    method = CASES[name]
    network, traced = make_network(batch_norm=not isinstance(method, Colt), dtype=torch.float32)
    network.to("meta")
    images = torch.empty(6, *SHAPE, device="meta")
    labels = torch.empty(6, dtype=torch.long, device="meta")
    for stage, ramping in moments(method):
        logits, statistics = traced.forward_with_statistics(images)
        graph = fold(traced, statistics)
        eps, ramp = torch.empty(2, dtype=torch.float64, device="meta").unbind()
        batch = Batch(
            *(images, labels, F.cross_entropy(logits, labels), graph, eps, True),
            keep_boxes=ramping,
            max_boxes=4,
            ramp=ramp,
            ramping=ramping,
            stage=stage,
            state={key: value.to("meta") for key, value in method.initial_state(graph).items()},
        )
        loss = method.loss(batch).loss
        assert loss.shape == ()
        backward(network, loss)


# -------------------------------------------------------------------------------------------------------------- state


def test_some_methods_have_state() -> None:
    assert {"uat", "cw_uat"} <= set(STATEFUL)


@stateful_case
def test_state_starts_fresh_each_time(name: str) -> None:
    graph = make_batch(make_network()[1]).graph
    first, second = (CASES[name].initial_state(graph) for _ in range(2))
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(value, second[key])
        assert value.data_ptr() != second[key].data_ptr()
        assert not value.requires_grad
        assert value.is_contiguous()
        if value.dim():
            assert value.shape[1:] == SHAPE
    if isinstance(CASES[name], UAT):
        assert len(first["delta"]) in (1, CLASSES)


@stateful_case
def test_state_changes_in_place(name: str) -> None:
    """The same tensors in the same memory, step after step: recorded steps and checkpoints know no other."""
    network, traced = make_network()
    batch = batch_of(name, traced)
    tensors = dict(batch.state)
    before = {key: (value.data_ptr(), value.dtype, value.shape, value.clone()) for key, value in tensors.items()}
    for _ in range(2):
        backward(network, CASES[name].loss(batch).loss)
    assert batch.state.keys() == before.keys()
    for key, value in batch.state.items():
        assert value is tensors[key]
        assert (value.data_ptr(), value.dtype, value.shape) == before[key][:3]
        assert value.isfinite().all()
        assert not value.requires_grad
        assert not torch.equal(value, before[key][3])


@every_case
def test_a_copy_of_the_state_continues_as_the_original(name: str) -> None:
    """What a checkpoint needs: nothing is remembered but `state`."""
    network, traced = make_network()
    batch = batch_of(name, traced)
    backward(network, CASES[name].loss(batch).loss)
    copied = replace(batch, state={key: value.clone() for key, value in batch.state.items()})
    losses = []
    for run in (batch, copied):
        for step in range(3):
            now = replace(run, generator=torch.Generator().manual_seed(step))
            losses.append(CASES[name].loss(now).loss)
            backward(network, losses[-1])
    assert all(map(torch.equal, losses[:3], losses[3:]))
