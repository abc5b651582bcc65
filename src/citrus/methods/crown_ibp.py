"""CROWN-IBP (Zhang et al., ICLR 2020): interval boxes inside the network, a linear bound on what it answers.

The two bounds on the margins are mixed; the share of the linear one falls as eps grows, so that training begins with a
tight bound and ends with the one that is easy to optimise. Loss fusion (Xu et al., NeurIPS 2020) carries one row per
image back through the network instead of one per wrong class: a looser bound on the loss at a fraction of the cost.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from citrus.bounds import Bounds, Box, margin_loss, margin_rows, training_planes
from citrus.methods.base import Batch, Method, MethodLoss, box_bounds, in_pieces, kept_boxes


@dataclass(frozen=True)
class CrownIBP(Method):
    """One box per image, bounded twice."""

    name: ClassVar[str] = "crown_ibp"
    certified: ClassVar[bool] = True
    limits: ClassVar = dict.fromkeys(("crown_start", "crown_end", "clean_start", "clean_end"), "[0, 1]")

    crown_start: float = 1.0
    """Share of the linear bound (beta) at eps 0; from there it goes to crown_end in proportion to eps."""
    crown_end: float = 0.0
    """Share of the linear bound at full eps: 0 ends in IBP, and no linear bound is computed from there on."""
    clean_start: float = 0.0
    """Share of the clean loss (kappa) at eps 0."""
    clean_end: float = 0.0
    """Share of the clean loss at full eps."""
    fused: bool = True
    """Bound the loss itself by one row per image, not each margin by its own."""

    def loss(self, batch: Batch) -> MethodLoss:
        linear = self.crown_end > 0 or (batch.ramping and self.crown_start > 0)
        centre, radius = batch.box(batch.images, batch.eps)
        bounds = box_bounds(replace(batch, keep_boxes=batch.keep_boxes or linear), centre, radius, batch.labels)
        if linear:
            rows = LinearRows(batch, centre, radius.expand_as(centre), bounds.pre_activations)
            crown = self.crown_start + (self.crown_end - self.crown_start) * batch.ramp
            losses = (fused_loss if self.fused else mixed_loss)(bounds, rows, crown)
        else:
            losses = margin_loss(bounds.lower)
        if self.clean_start or self.clean_end:
            clean = self.clean_start + (self.clean_end - self.clean_start) * batch.ramp
            losses = (1 - clean) * losses + clean * batch.clean_loss
        return MethodLoss(losses.mean(), kept_boxes(batch, bounds, radius))


@dataclass(frozen=True)
class LinearRows:
    """Linear lower bounds of combinations of the margins, given the box that enters each ReLU."""

    batch: Batch
    centre: Tensor
    radius: Tensor
    boxes: tuple[Box, ...]

    def lower(self, weights: Tensor | None = None) -> Tensor:
        """Of each margin, or of the sums with weights (images, rows, classes - 1): (images, rows)."""
        spec = margin_rows(self.batch.labels, self.batch.graph.classes, self.centre.dtype)
        spec = spec if weights is None else weights @ spec

        def bound(c: Tensor, r: Tensor, s: Tensor, *tensors: Tensor) -> tuple[Tensor]:
            boxes = [Box(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)]
            return (training_planes(self.batch.graph, c, s, boxes).lower(r),)

        tensors = (t for b in self.boxes for t in (b.centre, b.radius))
        size = max(1, self.batch.max_boxes // spec.shape[1])
        return in_pieces(bound, size, self.centre, self.radius, spec, *tensors)[0]


def linear_losses(batch: Batch, eps: Tensor | float) -> Tensor:
    """The loss of each image over its whole box of radius eps, at the better of both bounds of its margins."""
    centre, radius = batch.box(batch.images, eps)
    bounds = box_bounds(replace(batch, keep_boxes=True), centre, radius, batch.labels)
    rows = LinearRows(batch, centre, radius.expand_as(centre), bounds.pre_activations)
    return margin_loss(torch.maximum(rows.lower(), bounds.lower))


def mixed_loss(bounds: Bounds, rows: LinearRows, crown: Tensor | float) -> Tensor:
    """The loss of each image at a mixture of both bounds of its margins, (images,)."""
    return margin_loss(crown * rows.lower() + (1 - crown) * bounds.lower)


def fused_loss(bounds: Bounds, rows: LinearRows, crown: Tensor | float) -> Tensor:
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
    linear = one + (top - slope * upper).sum(1) - rows.lower(slope[:, None]).squeeze(1)
    mixed = crown * linear + (1 - crown) * (one + top.sum(1))
    return shift.squeeze(1) + mixed.clamp(min=torch.finfo(mixed.dtype).eps).log()
