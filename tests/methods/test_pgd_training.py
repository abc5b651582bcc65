"""Adversarial training against projected gradient ascent written a second time, image by image."""

import pytest
import torch
import torch.nn.functional as F
from support.steps import EPS, SHAPE, gradients, make_batch, make_network
from support.steps import one_thread as one_thread
from torch import Tensor

from citrus.attacks import Ascent, ascend
from citrus.errors import CitrusError
from citrus.methods import PGD, Batch

SIGN_STEPS = Ascent(steps=3, step_size=0.4, decay_at=(), keep="last")
ONE_STEP = Ascent(steps=1, step_size=2.0, decay_at=(), keep="last")


def one_by_one(batch: Batch, step_size: float, steps: int) -> Tensor:
    """Madry et al. for one image after another: random start, sign steps, projection, the last point."""
    noise = torch.rand(len(batch.images), *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for image, label, start in zip(batch.images, batch.labels, (2 * noise - 1) * EPS, strict=True):
        lower, upper = image - EPS, image + EPS
        if batch.clip:
            lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
        x = torch.maximum(torch.minimum(image + start, upper), lower)
        for _ in range(steps):
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(batch.graph(x[None]), label[None]), x, retain_graph=True)
            x = torch.maximum(torch.minimum(x + step_size * EPS * gradient.sign(), upper), lower)
        total = total + F.cross_entropy(batch.graph(x.detach()[None]), label[None])
    return total / len(batch.images)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("attack", [SIGN_STEPS, ONE_STEP])
def test_the_loss_is_cross_entropy_at_the_last_iterate(attack: Ascent, clip: bool) -> None:
    network, traced = make_network()
    loss = PGD(attack=attack).loss(make_batch(traced, clip=clip)).loss
    slow = one_by_one(make_batch(traced, clip=clip), attack.step_size, attack.steps)
    torch.testing.assert_close(loss, slow, rtol=1e-9, atol=1e-9)
    for a, b in zip(gradients(network, loss), gradients(network, slow), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_more_steps_and_restarts_find_more() -> None:
    _, traced = make_network()
    weak, strong = (
        PGD(attack=Ascent(steps=steps, restarts=restarts, step_size=0.25)).loss(make_batch(traced)).loss
        for steps, restarts in ((1, 1), (40, 4))
    )
    assert make_batch(traced).clean_loss < weak < strong


@pytest.mark.parametrize(("keep", "evaluations"), [("last", 5), ("best", 6)])
def test_the_last_iterate_costs_one_evaluation_less(keep: str, evaluations: int) -> None:
    calls: list[Tensor] = []

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        calls.append(delta.detach())
        loss = -((delta - 0.3) ** 2).sum(1)
        return loss, loss.detach()

    settings = Ascent(steps=5, step_size=0.5, decay_at=(), keep=keep)  # type: ignore[arg-type]
    found = ascend(lambda: torch.zeros(1, 1), objective, 1.0, settings)
    assert len(calls) == evaluations
    assert found.item() == 0.5  # the iterates are 0, 1/2, 0, 1/2, 0, 1/2


def test_restarts_have_no_last_iterate() -> None:
    with pytest.raises(CitrusError, match="3 restarts has no last iterate"):
        Ascent(restarts=3, keep="last")
