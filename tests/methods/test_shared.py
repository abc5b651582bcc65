"""Shared adversarial training: heap by heap against a plain loop, and its two ends."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.steps import EPS, SHAPE, gradients, make_batch, make_network
from support.steps import one_thread as one_thread
from torch import Tensor

from citrus.attacks import Ascent
from citrus.errors import CitrusError
from citrus.methods import PGD, Batch, Shared

ATTACK = Ascent(steps=3, step_size=0.4, decay_at=(), keep="last")
NO_LIMIT = 1e9


def heap_by_heap(batch: Batch, size: int, limit: float) -> tuple[Tensor, Tensor]:
    """Perturbations and loss: for each heap a start, three sign steps on its summed loss, cross-entropy at the end."""
    heaps = len(batch.images) // size
    noise = torch.rand(heaps, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    deltas, total = [], torch.zeros((), dtype=torch.float64)
    for h in range(heaps):
        images, labels = batch.images[h * size : (h + 1) * size], batch.labels[h * size : (h + 1) * size]

        def losses(delta: Tensor, images: Tensor = images, labels: Tensor = labels) -> list[Tensor]:
            points = [(x + delta).clamp(0, 1) if batch.clip else x + delta for x in images]
            return [F.cross_entropy(batch.graph(p[None]), y[None]) for p, y in zip(points, labels, strict=True)]

        delta = (2 * noise[h] - 1) * EPS
        for _ in range(3):
            delta = delta.detach().requires_grad_()
            pulling = [loss for loss in losses(delta) if loss.item() < limit]
            gradient = torch.zeros_like(delta)
            for loss in pulling:
                gradient += torch.autograd.grad(loss, delta, retain_graph=True)[0]
            delta = (delta + 0.4 * EPS * gradient.sign()).clamp(-EPS, EPS).detach()
        deltas.append(delta)
        total = total + torch.stack(losses(delta)).sum()
    return torch.stack(deltas), total / len(batch.images)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("limit", [NO_LIMIT, -math.log(0.2)])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_heap_by_heap(size: int, limit: float, clip: bool) -> None:
    network, traced = make_network()
    method = Shared(heap_size=size, limit=limit, attack=ATTACK)
    deltas, slow = heap_by_heap(make_batch(traced, clip=clip), size, limit)
    torch.testing.assert_close(method.perturbations(make_batch(traced, clip=clip)), deltas, rtol=0, atol=1e-12)
    loss = method.loss(make_batch(traced, clip=clip)).loss
    torch.testing.assert_close(loss, slow, rtol=1e-9, atol=1e-9)
    for a, b in zip(gradients(network, loss), gradients(network, slow), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("attack", [ATTACK, Ascent(steps=4, restarts=2, step_size=0.5)])
def test_heaps_of_one_image_are_adversarial_training(attack: Ascent) -> None:
    _, traced = make_network()
    shared = Shared(heap_size=1, limit=NO_LIMIT, attack=attack).loss(make_batch(traced)).loss
    torch.testing.assert_close(shared, PGD(attack=attack).loss(make_batch(traced)).loss, rtol=1e-12, atol=0)


def test_size_0_is_one_heap() -> None:
    _, traced = make_network()
    assert torch.equal(*(Shared(heap_size=size).loss(make_batch(traced)).loss for size in (0, 6)))


def test_a_heap_knows_nothing_of_the_others() -> None:
    _, traced = make_network()
    batch = make_batch(traced)
    other = replace(batch, images=torch.cat([batch.images[:3], 1 - batch.images[3:]]))
    method = Shared(heap_size=3, attack=ATTACK)
    first = method.perturbations(batch)
    second = method.perturbations(replace(other, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=1e-15)
    assert not torch.equal(first[1], second[1])


@pytest.mark.parametrize("clip", [False, True])
def test_perturbations_stay_in_their_box(clip: bool) -> None:
    _, traced = make_network(dtype=torch.float32)
    batch = replace(make_batch(traced, clip=clip), eps=torch.tensor(EPS, dtype=torch.float64))
    delta = Shared(heap_size=2, attack=Ascent(steps=5, step_size=3.0)).perturbations(batch)
    assert delta.shape == (3, *SHAPE)
    assert delta.dtype == torch.float32
    assert delta.abs().max() <= EPS * (1 + 1e-6)


def test_a_strong_attack_finds_less_the_more_images_share_it() -> None:
    _, traced = make_network()
    attack = Ascent(steps=40, restarts=4, step_size=0.25)
    losses = [Shared(heap_size=size, limit=NO_LIMIT, attack=attack).loss(make_batch(traced)).loss for size in (1, 2, 6)]
    assert losses[0] > losses[1] > losses[2] > make_batch(traced).clean_loss


BAD = [
    (Shared(heap_size=4), 10, "batch_size 10 is no multiple of heap_size 4: no heap may be cut."),
    (Shared(heap_size=7), 20, "batch_size 20 is no multiple of heap_size 7"),
    (Shared(heap_size=11), 10, r"heap_size must be 0 \(all\) to 10, the batch_size, got 11"),
    (Shared(heap_size=-2), 10, "got -2"),
    (Shared(heap_size=5, limit=0.0), 10, "limit must be larger than 0, got 0.0"),
    (Shared(heap_size=5, limit=math.nan), 10, "got nan"),
]


@pytest.mark.parametrize(("method", "batch_size", "says"), BAD)
def test_bad_settings_are_refused(method: Shared, batch_size: int, says: str) -> None:
    with pytest.raises(CitrusError, match=says):
        method.check(batch_size)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 10])
def test_sizes_that_divide_the_batch_are_accepted(size: int) -> None:
    Shared(heap_size=size).check(10)
