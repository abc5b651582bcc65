"""Algorithm 1 of the CITRUS paper as printed: a double loop over the images of a batch, one box at a time.

Slow and plain on purpose, and written without the library: its own interval propagation (lower and upper bounds through
the positive and the negative part of each weight), its own BatchNorm, its own loss. It reads an nn.Sequential of
Normalize, Conv2d, Linear, BatchNorm, ReLU and Flatten.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citrus.networks import Normalize

Norms = dict[nn.Module, tuple[Tensor, Tensor]]
"""BatchNorm layers as x -> scale * x + shift, per channel."""


def algorithm1(
    network: nn.Sequential, images: Tensor, labels: Tensor, perturbations: Tensor, tau: float, clip: bool, norms: Norms
) -> Tensor:
    """Lines 5 to 8 for one batch X_B of the paper: the sum over i and over j != i of L_IBP(x_i + v_j, y_i, tau)."""
    loss = images.new_zeros(())
    for i in range(len(images)):
        for j in range(len(images)):
            if j != i:
                loss = loss + ibp_loss(network, images[i] + perturbations[j], int(labels[i]), tau, clip, norms)
    return loss


def ibp_loss(network: nn.Sequential, x: Tensor, y: int, radius: float, clip: bool, norms: Norms) -> Tensor:
    """Equation 2: ln(1 + sum over i != y of exp(upper bound of o_i - o_y)), of one box around one image (C, H, W)."""
    lower, upper = x[None] - radius, x[None] + radius
    if clip:
        lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
    for layer in network[:-1]:
        lower, upper = propagate(layer, lower, upper, norms)
    last = network[-1]
    assert isinstance(last, nn.Linear)
    total = x.new_ones(())
    for i in range(last.out_features):
        if i != y:  # the difference of two scores is one linear function (elision)
            weight, bias = last.weight[i] - last.weight[y], last.bias[i] - last.bias[y]
            worst = (weight.clamp(min=0) * upper[0]).sum() + (weight.clamp(max=0) * lower[0]).sum() + bias
            total = total + worst.exp()
    return total.log()


def propagate(layer: nn.Module, lower: Tensor, upper: Tensor, norms: Norms) -> tuple[Tensor, Tensor]:
    """Bounds on the layer's result from bounds on its argument."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        positive, negative = layer.weight.clamp(min=0), layer.weight.clamp(max=0)

        def apply(weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
            if isinstance(layer, nn.Conv2d):
                return F.conv2d(x, weight, bias, layer.stride, layer.padding)
            return F.linear(x, weight, bias)

        return (
            apply(positive, lower, layer.bias) + apply(negative, upper, None),
            apply(positive, upper, layer.bias) + apply(negative, lower, None),
        )
    if layer in norms:
        scale, shift = (v.view(1, -1, *[1] * (lower.dim() - 2)) for v in norms[layer])
        ends = torch.stack([scale * lower + shift, scale * upper + shift])
        return ends.amin(0), ends.amax(0)
    assert isinstance(layer, Normalize | nn.ReLU | nn.Flatten)
    return layer(lower), layer(upper)  # all of them increase in every coordinate


def norms_of(network: nn.Sequential, images: Tensor) -> Norms:
    """Each BatchNorm layer with the mean and (biased) variance that the clean images give it."""
    norms: Norms = {}
    x = images
    for layer in network:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            axes = [axis for axis in range(x.dim()) if axis != 1]
            mean = x.mean(axes, keepdim=True)
            variance = (x - mean).square().mean(axes)
            scale = layer.weight / (variance + layer.eps).sqrt()
            norms[layer] = (scale, layer.bias - mean.flatten() * scale)
            x = scale.view_as(mean) * x + norms[layer][1].view_as(mean)
        else:
            x = layer(x)
    return norms
