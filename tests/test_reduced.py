"""Boxes bounded in fewer bits: the same up to rounding, with gradients that neither vanish nor stay scaled."""

from dataclasses import replace

import pytest
import torch
from steps import gradients, make_batch, make_network

from citrus.methods import IBP


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_other_bits_give_the_same_loss_and_gradient(batch_norm: bool, keep: bool) -> None:
    """float64 inside float32: what remains is exact but for rounding, so the scaling must cancel."""
    network, traced = make_network(batch_norm, torch.float32)
    batch = replace(make_batch(traced), keep_boxes=keep)
    plain, reduced = (IBP().loss(replace(batch, box_type=kind)) for kind in (None, torch.float64))
    torch.testing.assert_close(plain.loss, reduced.loss)
    for a, b in zip(gradients(network, plain.loss), gradients(network, reduced.loss), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    first = next(network.parameters())
    if keep:
        assert plain.boxes
        assert reduced.boxes
        for a, b in zip(plain.boxes.pre_activations, reduced.boxes.pre_activations, strict=True):
            torch.testing.assert_close(a.radius, b.radius)
            torch.testing.assert_close(
                *(torch.autograd.grad(box.radius.sum(), first, retain_graph=True)[0] for box in (a, b)),
                rtol=1e-4,
                atol=1e-6,
            )


def test_float16_keeps_gradients_that_would_vanish() -> None:
    """A loss as small as one box among many: unscaled its float16 gradient would be 0."""
    network, traced = make_network(False, torch.float32)
    batch = make_batch(traced)
    plain, reduced = (IBP().loss(replace(batch, box_type=kind)).loss * 1e-8 for kind in (None, torch.float16))
    for a, b in zip(gradients(network, plain), gradients(network, reduced), strict=True):
        assert 0 < a.abs().max() < 3e-7
        torch.testing.assert_close(a, b, rtol=0.05, atol=float(0.02 * a.abs().max()))
