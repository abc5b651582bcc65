"""CROWN-IBP (Zhang et al., ICLR 2020): interval boxes inside the network, a linear bound on what it answers.

The two bounds on the margins are mixed; the share of the linear one falls as eps grows, so that training begins with a
tight bound and ends with the one that is easy to optimise. Loss fusion (Xu et al., NeurIPS 2020) carries one row per
image back through the network instead of one per wrong class: a looser bound on the loss at a fraction of the cost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from citrus.bounds import Bounds, Box, margin_loss, margin_rows, training_planes
from citrus.methods.base import Batch, Boxes, Method, MethodLoss, box_bounds, in_pieces

LinearLower = Callable[[Tensor | None], Tensor]
"""Linear lower bounds of each margin (None), or of sums with weights (images, rows, classes - 1): (images, rows)."""


@dataclass(frozen=True)
class CrownIBP(Method):
    """One box per image, bounded twice."""

    name: ClassVar[str] = "crown_ibp"
    certified: ClassVar[bool] = True
    limits: ClassVar = {"crown_start": "[0, 1]", "crown_end": "[0, 1]"}

    crown_start: float = 1.0
    """Share of the linear bound (beta) at eps 0; from there it goes to crown_end in proportion to eps."""
    crown_end: float = 0.0
    """Share of the linear bound at full eps: 0 ends in IBP, and no linear bound is computed from there on."""
    fused: bool = True
    """Bound the loss itself by one row per image, not each margin by its own."""

    def loss(self, batch: Batch) -> MethodLoss:
        linear = self.crown_end > 0 or (batch.ramping and self.crown_start > 0)
        bounds, boxes, lower = bound_twice(batch, batch.eps, linear)
        crown = self.crown_start + (self.crown_end - self.crown_start) * batch.ramp
        if not linear:
            losses = margin_loss(bounds.lower)
        elif self.fused:
            losses = fused_loss(bounds, lower, crown)
        else:
            losses = margin_loss(crown * lower(None) + (1 - crown) * bounds.lower)
        return MethodLoss(losses.mean(), boxes)


def bound_twice(batch: Batch, eps: Tensor | float, linear: bool = True) -> tuple[Bounds, Boxes | None, LinearLower]:
    """Interval bounds of each image's whole box of radius eps, and its linear bounds, computed when they are asked."""
    centre, radius = batch.box(batch.images, eps)
    bounds, boxes = box_bounds(batch, centre, radius, batch.labels, keep=linear)

    def lower(weights: Tensor | None) -> Tensor:
        spec = margin_rows(batch.labels, batch.graph.classes, centre.dtype)
        spec = spec if weights is None else weights @ spec

        def bound(c: Tensor, r: Tensor, s: Tensor, *tensors: Tensor) -> tuple[Tensor]:
            inner = [Box(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)]
            return (training_planes(batch.graph, c, s, inner).training_lower(r),)

        tensors = (t for b in bounds.pre_activations for t in (b.centre, b.radius))
        size = max(1, batch.max_boxes // spec.shape[1])
        return in_pieces(bound, size, centre, radius.expand_as(centre), spec, *tensors)[0]

    return bounds, boxes, lower


def linear_losses(batch: Batch, eps: Tensor | float) -> Tensor:
    """The loss of each image over its whole box of radius eps, at the better of both bounds of its margins."""
    bounds, _, lower = bound_twice(batch, eps)
    return margin_loss(torch.maximum(lower(None), bounds.lower))


def fused_loss(bounds: Bounds, lower: LinearLower, crown: Tensor | float) -> Tensor:
    """A mixture of both bounds of the loss log S with S = 1 + sum exp(v), v = -margins, (images,).

    exp(v) lies below its chord over the interval [l, u] of v:  exp(v) <= exp(u) + slope * (v - u), and the weighted sum
    of the margins has one linear bound. All is scaled by exp(-shift) so that the largest term of the interval bound of
    S is 1; S is mixed, as in Shi et al.'s code.
    """
    upper, width = -bounds.lower, bounds.upper - bounds.lower
    shift = upper.detach().amax(1, keepdim=True).clamp(min=0)
    top = (upper - shift).exp()
    some = torch.where(width > 0, width, 1.0)
    slope = top * torch.where(width > 0, -torch.expm1(-some) / some, 1.0)
    one = (-shift).exp().squeeze(1)
    linear = one + (top - slope * upper).sum(1) - lower(slope[:, None]).squeeze(1)
    mixed = crown * linear + (1 - crown) * (one + top.sum(1))
    return shift.squeeze(1) + mixed.clamp(min=torch.finfo(mixed.dtype).eps).log()
