"""What the training loop and a method say to each other.

The loop hands a method one `Batch`; the method answers with its loss and the boxes it bounded on the way (the Shi
regularisers read them). A method is a frozen dataclass of hyper-parameters with a `loss`; nothing else is known of it.

On a GPU the loop records a step once and replays it, so a loss never asks the device for a value: what changes from
step to step are tensors (`eps`, `ramp`, `state`), what is a plain Python value (`ramping`, `stage`) stays the same for
all steps of one recording.
"""

from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from citrus.attacks import Ascent, Loss, Model, cross_entropy, pgd
from citrus.bounds import Bounds, Box, margin_loss, margin_rows, training_interval
from citrus.inputs import check_limits
from citrus.networks import Graph
from citrus.networks.kernels import in_device_layout


@dataclass(frozen=True)
class Batch:
    """One training step as a method sees it."""

    images: Tensor
    labels: Tensor
    clean_loss: Tensor
    """Mean cross-entropy of the unperturbed images."""
    graph: Graph
    """The network as plain operations, BatchNorm folded with this batch's statistics; gradients reach the weights."""
    eps: Tensor | float
    """Radius of this step: a number or a tensor without axes."""
    clip: bool
    """Perturbed images stay in [0, 1], as most single-input methods assume."""
    generator: torch.Generator | None = None
    keep_boxes: bool = True
    """Whether the regularisers want the boxes."""
    max_boxes: int = 1 << 30
    """More boxes than this are bounded in chunks that are recomputed in the backward pass: less memory, same result."""
    ramp: Tensor | float = 1.0
    """eps as a share of its final value."""
    ramping: bool = False
    """Whether eps is still growing."""
    stage: int = 0
    """Where the method said it is (`Method.stage`)."""
    state: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What the method keeps from step to step (`Method.initial_state`); it changes these tensors in place."""
    half: bool = False
    """Whether attacks run in bfloat16."""

    def clipped(self, images: Tensor) -> Tensor:
        """Perturbed images, kept in [0, 1] where the run asks for it."""
        return images.clamp(0, 1) if self.clip else images

    def box(self, centre: Tensor, radius: Tensor | float) -> tuple[Tensor, Tensor]:
        """Centre and radius of boxes, cut to [0, 1] where the run asks for it; a radius that all share is one row."""
        centre = in_device_layout(centre)
        radius = torch.ones_like(centre[:1]) * radius
        if not self.clip:
            return centre, radius
        lower, upper = (centre - radius).clamp(0, 1), (centre + radius).clamp(0, 1)
        return (upper + lower) / 2, (upper - lower) / 2

    def frozen(self) -> Model:
        """The network as attacks see it: no gradient reaches the weights."""
        plain = self.graph.map(Tensor.detach)
        if not self.half:
            return plain
        half = plain.map(Tensor.bfloat16)
        return lambda x: half(x.bfloat16()).to(x.dtype)

    def perturbations(
        self, radius: Tensor | float, attack: Ascent, sets: Tensor | None = None, loss: Loss = cross_entropy
    ) -> Tensor:
        """The strongest perturbation of at most `radius` that the attack finds for each image alone, or for each of
        `sets` (sets, members) of images at once."""
        model, clip, generator = self.frozen(), self.clip, self.generator
        return pgd(
            model, self.images, self.labels, radius, attack, sets=sets, clip=clip, generator=generator, loss=loss
        )


@dataclass(frozen=True)
class Boxes:
    """What the regularisers want to know of a propagation."""

    pre_activations: tuple[Box, ...]
    """The boxes that entered each ReLU."""
    input_radius: Tensor
    """Mean radius of the input boxes in each channel, in pixel units."""


@dataclass(frozen=True)
class MethodLoss:
    """A scalar loss and the boxes that were bounded for it (None when nobody wanted them)."""

    loss: Tensor
    boxes: Boxes | None = None


class Method:
    """A training method: hyper-parameters and a loss. Subclasses are frozen dataclasses."""

    name: ClassVar[str]
    certified: ClassVar[bool] = False
    """Whether it bounds boxes, so that Shi's initialisation and regularisers make sense."""
    limits: ClassVar[Mapping[str, str]] = {}
    """The interval in which each number must lie, such as "[0, 1]"."""

    def check(self, batch_size: int) -> None:
        """Raise CitrusError when the hyper-parameters do not fit their limits, each other or the batch."""
        check_limits(self, self.limits)

    def check_graph(self, graph: Graph) -> None:
        """Raise CitrusError when the hyper-parameters do not fit the network."""

    def initial_state(self, graph: Graph) -> dict[str, Tensor]:
        """Tensors that the method keeps from step to step; they are part of every checkpoint."""
        return {}

    def stage(self, share: float) -> int:
        """The stage a method that has several is in after `share` (0 to 1) of all steps."""
        return 0

    def loss(self, batch: Batch) -> MethodLoss:
        raise NotImplementedError


def box_losses(
    batch: Batch, centre: Tensor, radius: Tensor | float, labels: Tensor, shrink: float = 1.0
) -> tuple[Tensor, Boxes | None]:
    """The IBP loss (CITRUS paper, eq. 2) of each box, (boxes,), and what the regularisers want to know."""
    bounds, boxes = box_bounds(batch, *batch.box(centre, radius), labels, shrink)
    return margin_loss(bounds.lower), boxes


def box_bounds(
    batch: Batch, centre: Tensor, radius: Tensor, labels: Tensor, shrink: float = 1.0, keep: bool = False
) -> tuple[Bounds, Boxes | None]:
    """Interval bounds on the margins in each box as `Batch.box` makes them, and what the regularisers want to know.

    `keep` is for methods that read the boxes before the ReLUs themselves.
    """
    keep = keep or batch.keep_boxes

    def bound(c: Tensor, r: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = margin_rows(y, batch.graph.classes, c.dtype)
        bounds = training_interval(batch.graph, c, r, rows, shrink, keep)
        kept = (t for b in bounds.pre_activations for t in (b.centre, b.radius.expand_as(b.centre)))
        return bounds.lower, bounds.upper, *kept

    lower, upper, *tensors = in_pieces(bound, batch.max_boxes, centre, radius, labels)
    pre_activations = tuple(Box(c, r) for c, r in zip(tensors[::2], tensors[1::2], strict=True))
    boxes = Boxes(pre_activations, radius.mean((0, 2, 3))) if batch.keep_boxes else None
    return Bounds(lower, upper, pre_activations), boxes


def in_pieces(function: Callable[..., tuple[Tensor, ...]], size: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """function(*tensors), `size` rows at a time: a piece is computed again in the backward pass instead of kept.

    A tensor of one row is the same for all rows of the others.
    """
    count = len(tensors[0])
    if count <= size:
        return function(*tensors)
    pieces = [t.split(size) if len(t) == count else [t] * -(-count // size) for t in tensors]
    parts = [  # on a GPU the backward pass runs in a thread of its own, which must compile, too, if this one does
        checkpoint(copy_context().run, function, *piece, use_reentrant=False, preserve_rng_state=False)
        for piece in zip(*pieces, strict=True)
    ]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
