"""Proofs of one image at a time: intervals, linear bounds, optimised slopes, each for what cheaper ones left open."""

from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.bounds import Box, LinearBounds, Planes, alpha, crown, interval, margin_rows, wrong_labels
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
class Singles(Block):
    """A block with what is proved about its images one by one, and the planes under what is still open."""

    wrong: Tensor  # the wrong label of each row: (n, rows)
    stage: Tensor  # which of the stages ALONE proved the row, -1 for none: (n, rows)
    live: Tensor  # the images that linear bounds were computed for: (m,)
    boxes: tuple[Box, ...]  # of the live images, one per ReLU
    planes: tuple[Planes, ...]  # of the live images: by CROWN, and by optimised slopes if they were computed
    slopes: tuple[Tensor, ...]  # the optimised slopes of each ReLU: (m, rows, *neurons)

    @property
    def open(self) -> Tensor:
        """What is not proved: (n, rows). A misclassified image is open in every row."""
        return (self.stage < 0) | ~self.correct[:, None]

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
    bounds: list[LinearBounds] = []
    if len(live):
        with question.timed("crown"):
            bounds = [crown(graph, block.images[live], eps, spec[live], verifier.linear)]
            _mark(stage, live, bounds[0].lower > slack[live], "crown")
    if verifier.alpha is not None and bool((stage[live] < 0).any()):
        with question.timed("alpha"):
            bounds.append(alpha(graph, block.images[live], eps, spec[live], verifier.alpha, bounds[0]))
            _mark(stage, live, bounds[1].lower > slack[live], "alpha")
    return Singles(
        **vars(block),
        wrong=wrong_labels(block.labels, graph.classes),
        stage=stage,
        live=live,
        boxes=bounds[0].pre_activations if bounds else (),
        planes=tuple(found.lower_planes for found in bounds if found.lower_planes is not None),
        slopes=bounds[-1].slopes if bounds else (),
    )


def _mark(stage: Tensor, where: Tensor, proved: Tensor, name: str) -> None:
    """Note the stage for rows of some images that are proved now and were not before."""
    part = stage[where]
    stage[where] = torch.where(proved & (part < 0), ALONE.index(name), part)
