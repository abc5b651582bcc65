"""Boxes bounded in another type than that of the images: the same up to rounding."""

from dataclasses import replace

import pytest
import torch
from support.steps import gradients, make_batch, make_network

from citrus.methods import IBP


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_other_bits_give_the_same_loss_and_gradient(batch_norm: bool, keep: bool) -> None:
    """float64 inside float32: what remains is exact but for rounding."""
    network, traced = make_network(batch_norm, torch.float32)
    batch = replace(make_batch(traced), keep_boxes=keep)
    plain, other = (IBP().loss(replace(batch, box_type=kind)) for kind in (None, torch.float64))
    assert other.loss.dtype == torch.float32
    torch.testing.assert_close(plain.loss, other.loss)
    for a, b in zip(gradients(network, plain.loss), gradients(network, other.loss), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    first = next(network.parameters())
    if keep:
        assert plain.boxes
        assert other.boxes
        for a, b in zip(plain.boxes.pre_activations, other.boxes.pre_activations, strict=True):
            torch.testing.assert_close(a.radius, b.radius)
            torch.testing.assert_close(
                *(torch.autograd.grad(box.radius.sum(), first, retain_graph=True)[0] for box in (a, b)),
                rtol=1e-4,
                atol=1e-6,
            )


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e8])
def test_bfloat16_keeps_gradients_of_every_size(scale: float) -> None:
    """The gradient of one box among many is tiny, and that of a weight that all pixels share is large."""
    network, traced = make_network(False, torch.float32)
    batch = make_batch(traced)
    with torch.backends.mkldnn.flags(enabled=False):  # its bfloat16 convolutions need instructions not every CPU has
        losses = [IBP().loss(replace(batch, box_type=kind)).loss * scale for kind in (None, torch.bfloat16)]
        plain, reduced = (gradients(network, loss) for loss in losses)
    for a, b in zip(plain, reduced, strict=True):
        assert a.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=0.05, atol=float(0.05 * a.abs().max()))
