"""Cross-input boxes, one at a time and without the library, and a record of the attacks that led to them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import citrus.methods.base as module
from citrus.methods import Batch
from support.algorithm1 import ibp_loss, norms_of
from support.steps import EPS, gradients

TAU_RATIO = 0.4
TAU, RADIUS = TAU_RATIO * EPS, EPS - TAU_RATIO * EPS


def box_loss(network: nn.Sequential, batch: Batch, i: int, delta: Tensor, tau: float = TAU) -> Tensor:
    """L_IBP(x_i + delta, y_i, tau), written without the library."""
    norms = norms_of(network, batch.images)
    return ibp_loss(network, batch.images[i] + delta, int(batch.labels[i]), tau, batch.clip, norms)


def point_loss(network: nn.Sequential, batch: Batch, i: int, delta: Tensor) -> Tensor:
    """Cross-entropy at x_i + delta: a box without extent."""
    return box_loss(network, batch, i, delta, 0.0)


def spy_on_pgd(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Tensor | None, Tensor]]:
    """Radius, sets and answer of every attack."""
    calls: list[tuple[float, Tensor | None, Tensor]] = []
    attack = module.pgd

    def spy(model: Any, images: Tensor, labels: Tensor, radius: float, *rest: Any, **options: Any) -> Tensor:
        answer = attack(model, images, labels, radius, *rest, **options)
        calls.append((radius, options["sets"], answer))
        return answer

    monkeypatch.setattr(module, "pgd", spy)
    return calls


def assert_same(network: nn.Module, first: Tensor, second: Tensor) -> None:
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)
    for x, y in zip(gradients(network, first), gradients(network, second), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)
