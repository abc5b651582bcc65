"""Interval bounds in fewer bits, for training only: on a GPU float16 takes half the time of TF32 and half the memory.

float16 has as many bits as TF32 but a narrow range, and gradients of a mean over many boxes are tiny: inside they are
SCALE times as large, and what leaves towards the weights is divided again. Nothing here is a proof.
"""

from typing import Any

import torch
from torch import Tensor

from citrus.bounds.interval import Bounds, Box, interval
from citrus.networks.operations import Graph

SCALE = 4096.0


class _ScaleGradient(torch.autograd.Function):
    """The same value, its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def reduced_interval(
    graph: Graph, centre: Tensor, radius: Tensor, spec: Tensor, shrink: float, keep_boxes: bool, dtype: torch.dtype
) -> Bounds:
    """`interval`, computed in `dtype`; what comes back has the type of the centre. No gradient reaches the centre."""

    def into(x: Tensor) -> Tensor:
        return _scaled(x, 1 / SCALE).to(dtype)

    def back(x: Tensor) -> Tensor:
        return _scaled(x.to(centre.dtype), SCALE)

    inside = (graph.map(into), centre.detach().to(dtype), radius.detach().to(dtype), spec.to(dtype))
    bounds = interval(*inside, shrink, keep_boxes)
    boxes = tuple(Box(back(box.centre), back(box.radius)) for box in bounds.pre_activations)
    return Bounds(back(bounds.lower), back(bounds.upper), boxes)


def _scaled(x: Tensor, factor: float) -> Tensor:
    scaled: Tensor = _ScaleGradient.apply(x, factor)
    return scaled
