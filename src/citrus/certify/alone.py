"""Proofs of one image at a time: intervals, linear bounds, optimised slopes, each for what cheaper ones left open."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds import Box, LinearBounds, Planes, alpha, crown, interval, margin_rows, wrong_labels
from citrus.bounds.refine import select_box
from citrus.certify.result import ALONE
from citrus.certify.settings import Question

ROUNDING = 2e-6  # share of a score's size that a float32 bound must exceed 0 by; `citrus check` is rigorous


@dataclass(frozen=True)
class Block:
    """Images that go through the stages together, in whole groups."""

    index: Tensor  # places of the images in the data set: (n,)
    images: Tensor
    labels: Tensor
    scores: Tensor  # class scores of the images as they are: (n, classes)
    owner: Tensor  # the group of each image, counted from 0: (n,)

    @property
    def correct(self) -> Tensor:
        """Which images are classified right: (n,)."""
        return self.scores.argmax(1) == self.labels


@dataclass(frozen=True)
class Singles:
    """What is proved about the images of a block one by one, and the planes under what is still open."""

    block: Block
    wrong: Tensor  # the wrong label of each row: (n, rows)
    stage: Tensor  # which of the stages ALONE proved the row, -1 for none: (n, rows)
    live: Tensor  # the images that linear bounds were computed for: (m,)
    boxes: tuple[Box, ...] = ()  # of the live images, one per ReLU
    planes: tuple[Planes, ...] = ()  # of the live images: by CROWN, and by optimised slopes if they were computed
    slopes: tuple[Tensor, ...] = ()  # the optimised slopes of each ReLU: (m, rows, *neurons)

    @property
    def open(self) -> Tensor:
        """What is not proved: (n, rows). A misclassified image is open in every row."""
        return (self.stage < 0) | ~self.block.correct[:, None]

    @property
    def place(self) -> dict[int, int]:
        """The place of each live image among the live ones."""
        return {image: p for p, image in enumerate(self.live.tolist())}

    def stage_counts(self, mine: Tensor) -> dict[str, int]:
        """How many of some images each stage settled: the stage of their last row."""
        proved = ~self.open.any(1) & mine
        last = self.stage[proved].amax(1) if bool(proved.any()) else torch.empty(0)
        return {name: int((last == i).sum()) for i, name in enumerate(ALONE)}


def prove_alone(question: Question, block: Block) -> Singles:
    """Run the single-image stages of a verifier."""
    graph, eps, verifier = question.graph, question.eps, question.verifier
    spec = margin_rows(block.labels, graph.classes, block.images.dtype)
    slack = ROUNDING * block.scores.abs().amax(1, keepdim=True)
    stage = torch.full(spec.shape[:2], -1, device=spec.device)
    if verifier.interval:
        with question.timed("interval"):
            stage[interval(graph, block.images, eps, spec).lower > slack] = ALONE.index("interval")
    live = ((stage < 0).any(1) & block.correct).nonzero().flatten()
    singles = Singles(block, wrong_labels(block.labels, graph.classes), stage, live)
    if not len(live):
        return singles
    with question.timed("crown"):
        first = crown(graph, block.images[live], eps, spec[live], verifier.linear)
        _mark(stage, live, first.lower > slack[live], "crown")
    assert first.lower_planes is not None
    singles = replace(singles, boxes=first.pre_activations, planes=(first.lower_planes,))
    if verifier.alpha is None:
        return singles
    with question.timed("alpha"):
        return _optimised(question, singles, first, slack)


def _optimised(question: Question, singles: Singles, first: LinearBounds, slack: Tensor) -> Singles:
    """Optimised slopes for the live images that are still open, or for the most promising of them."""
    block, live, stage, verifier = singles.block, singles.live, singles.stage, question.verifier
    assert verifier.alpha is not None
    chosen = (stage[live] < 0).any(1)
    if verifier.alpha_images is not None:
        worst = first.lower.masked_fill(stage[live] >= 0, float("inf")).amin(1)
        chosen &= _nearest(worst.masked_fill(~chosen, -float("inf")), block.owner[live], verifier.alpha_images)
    some = chosen.nonzero().flatten()
    if not len(some):
        return singles
    (planes,), images = singles.planes, live[some]
    boxes = tuple(select_box(box, some) for box in first.pre_activations)
    start = LinearBounds(first.lower[some], first.upper[some], boxes, Planes(planes.a[some], planes.b[some]))
    spec = margin_rows(block.labels[images], question.graph.classes, block.images.dtype)
    found = alpha(question.graph, block.images[images], question.eps, spec, verifier.alpha, start)
    assert found.lower_planes is not None
    assert found.slopes is not None
    _mark(stage, images, found.lower > slack[images], "alpha")
    better = Planes(
        planes.a.index_copy(0, some, found.lower_planes.a), planes.b.index_copy(0, some, found.lower_planes.b)
    )
    slopes = tuple(s.new_zeros(len(live), *s.shape[1:]).index_copy(0, some, s.detach()) for s in found.slopes)
    tight = tuple(
        Box(box.centre.index_copy(0, some, new.centre), box.radius.index_copy(0, some, new.radius))
        for box, new in zip(singles.boxes, found.pre_activations, strict=True)
    )
    return replace(singles, boxes=tight, planes=(planes, better), slopes=slopes)


def _nearest(score: Tensor, owner: Tensor, count: int) -> Tensor:
    """Which are among the `count` highest scores of their group: (n,)."""
    order = score.argsort(descending=True)
    keep = torch.zeros_like(score, dtype=torch.bool)
    for group in owner.unique():
        keep[order[owner[order] == group][:count]] = True
    return keep


def _mark(stage: Tensor, where: Tensor, proved: Tensor, name: str) -> None:
    """Note the stage for rows of some images that are proved now and were not before."""
    part = stage[where]
    stage[where] = torch.where(proved & (part < 0), ALONE.index(name), part)
