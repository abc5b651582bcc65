"""TAPS and STAPS (Mao et al., NeurIPS 2023): boxes through the first layers, an attack in the box before the last ones.

Interval bounds say too much of a network, attacks too little. TAPS bounds the features by a box and searches it for one
point per wrong class that makes this class's margin small. The loss is a product of two batch means,
    L = L_attack * L_IBP    with    L(m) = log(1 + sum exp(-m)),
where the gradient of the first factor counts `gradient_scale` times. While eps grows, L = L_IBP. STAPS does so within
SABR's small box around an adversarial example.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from citrus.attacks import Ascent, Model, ascend, uniform
from citrus.bounds import Box, margin_loss, margin_rows, relu_box
from citrus.errors import CitrusError
from citrus.methods.base import Batch, Method, MethodLoss, box_bounds
from citrus.methods.ibp import SABR
from citrus.networks import Graph


def classifier(graph: Graph, relus: int) -> Graph:
    """The network behind a ReLU layer, so that it holds the last `relus` of them."""
    layers = graph.relu_results
    if relus > 0 and relus >= len(layers):
        raise CitrusError(
            f"classifier_relus {relus} is too many for a network with {len(layers)} ReLU layers: boxes must pass the "
            f"first one, so {max(len(layers) - 1, 0)} is the most."
        )
    cut = layers[-relus - 1] if layers else 0
    if any(min(node.inputs) < cut for node in graph.nodes[cut:]):
        raise CitrusError(f"classifier_relus {relus} would split the network within a residual block.")
    return graph.behind(cut)


def link(box: Box, share: Tensor, slack: float) -> Tensor:
    """The points centre + share * radius, (images, points, ...), with the rectified linear gradient to their box.

    A coordinate on the upper (lower) bound moves with it; the influence falls to 0 at `slack` box widths from there.
    """
    centre, radius = box.centre[:, None], box.radius[:, None]
    upper, lower = (((s - 1) / (2 * slack) + 1).clamp(min=0) for s in (share, -share))
    to_centre = torch.where(radius > 0, upper + lower, 1.0)  # a box without width is its centre
    points = (centre + share * radius).detach()
    return points + to_centre * (centre - centre.detach()) + (upper - lower) * (radius - radius.detach())


@dataclass(frozen=True)
class TAPS(Method):
    """Interval bounds up to the classifier, latent attacks from there."""

    name: ClassVar[str] = "taps"
    certified: ClassVar[bool] = True
    limits: ClassVar = {
        "classifier_relus": "[0, inf)",
        "gradient_scale": "(0, inf)",
        "slack": "(0, 1]",
        "shrink": "(0, 1]",
    }

    classifier_relus: int = 1
    """ReLU layers behind the split, in the part that is attacked; 0 leaves nothing to attack, which is IBP."""
    gradient_scale: float = 5.0
    """Weight of the attack's gradient beside that of the interval loss."""
    slack: float = 0.5
    """How far from a bound, in widths of the box, a coordinate still feels it."""
    shrink: float = 1.0
    """Factor on the upper bound of ReLUs that may be on or off."""
    latent_attack: Ascent = field(default_factory=lambda: Ascent(steps=20, step_size=0.4, decay=0.1, decay_at=(0.7,)))
    """The search for each margin's point; its radius is half the width of the box, coordinate by coordinate."""

    def check_graph(self, graph: Graph) -> None:
        classifier(graph, self.classifier_relus)

    def input_box(self, batch: Batch) -> tuple[Tensor, Tensor | float]:
        """Centre and radius of the box of each image."""
        return batch.images, batch.eps

    def loss(self, batch: Batch) -> MethodLoss:
        attacking = self.classifier_relus > 0 and not batch.ramping
        box = batch.box(*self.input_box(batch))
        bounds, boxes = box_bounds(batch, *box, batch.labels, self.shrink, keep=attacking)
        loss = margin_loss(bounds.lower).mean()
        if attacking:
            features = relu_box(bounds.pre_activations[-self.classifier_relus - 1], self.shrink)
            attacked = margin_loss(self.attacked_margins(batch, features)).mean()
            loss = loss * (attacked.detach() + self.gradient_scale * (attacked - attacked.detach()))
        return MethodLoss(loss, boxes)

    def attacked_margins(self, batch: Batch, features: Box) -> Tensor:
        """Each margin at the worst point of the box that is found for it, (images, classes - 1)."""
        graph = classifier(batch.graph, self.classifier_relus)
        frozen = replace(batch, graph=graph).frozen()
        rows = margin_rows(batch.labels, graph.classes, features.centre.dtype)
        images, count, _ = rows.shape
        centre, radius = features.centre.detach()[:, None], features.radius.detach()[:, None]

        def margins(model: Model, points: Tensor) -> Tensor:
            """Of every point (images, margins, ...) the one that it was sought for."""
            return (model(points.flatten(0, 1)).view_as(rows) * rows).sum(2)

        def objective(share: Tensor, restart: int) -> tuple[Tensor, Tensor]:
            loss = -margins(frozen, centre + share.unflatten(0, (images, count)) * radius).flatten()
            return loss, loss

        shape = (images * count, *graph.input_shape)
        start = partial(uniform, shape, 1.0, features.centre.detach(), batch.generator)
        share = ascend(start, objective, 1.0, self.latent_attack)
        return margins(graph, link(features, share.unflatten(0, (images, count)), self.slack))


@dataclass(frozen=True)
class STAPS(TAPS):
    """TAPS on a box of radius tau = tau_ratio * eps; while eps grows, and with nothing to attack, this is SABR."""

    name: ClassVar[str] = "staps"
    limits: ClassVar = {**TAPS.limits, "tau_ratio": "[0, 1]"}

    tau_ratio: float = 0.7
    """Radius of the small box as a share of eps: 1 is TAPS."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=10, step_size=0.2, decay_at=()))
    """The search for the adversarial example."""

    def input_box(self, batch: Batch) -> tuple[Tensor, Tensor | float]:
        return SABR(self.tau_ratio, attack=self.attack).small_box(batch)
