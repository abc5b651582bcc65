"""Proofs of one image at a time: intervals, linear bounds, optimised slopes, each for what cheaper ones left open."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds import Box, LinearBounds, Planes, alpha, crown, interval, margin_rows, wrong_labels
from citrus.bounds.refine import select_box
from citrus.certify.verifiers import Verifier
from citrus.networks import Graph

STAGES = ("interval", "crown", "alpha")
ROUNDING = 2e-6  # share of a score's size that a float32 bound must exceed 0 by; `citrus check` is rigorous


@dataclass(frozen=True)
class Singles:
    """What is proved about the images of a block one by one, and the planes under what is still open."""

    images: Tensor
    labels: Tensor
    correct: Tensor
    """(n,)"""
    wrong: Tensor
    """(n, rows) the wrong label of each row"""
    stage: Tensor
    """(n, rows) which of STAGES proved the row, -1 for none"""
    live: Tensor
    """(m,) the images that linear bounds were computed for"""
    boxes: tuple[Box, ...]
    """of the live images, one per ReLU"""
    planes: tuple[Planes, ...] = ()
    """of the live images: by CROWN, and by optimised slopes if they were computed"""
    slopes: tuple[Tensor, ...] = ()
    """(m, rows, *neurons) the optimised slopes of each ReLU"""

    @property
    def open(self) -> Tensor:
        """(n, rows): not proved. A misclassified image is open in every row."""
        return (self.stage < 0) | ~self.correct[:, None]

    def stage_counts(self, mine: Tensor) -> dict[str, int]:
        """How many of some images each stage settled: the stage of their last row."""
        proved = ~self.open.any(1) & mine
        last = self.stage[proved].amax(1) if bool(proved.any()) else torch.empty(0)
        return {name: int((last == i).sum()) for i, name in enumerate(STAGES)}


def prove_alone(
    graph: Graph,
    images: Tensor,
    labels: Tensor,
    eps: float,
    verifier: Verifier,
    seconds: dict[str, float] | None = None,
    owner: Tensor | None = None,
) -> Singles:
    """Run the single-image stages of a verifier; `seconds` adds up their times, `owner` is the group of each image."""
    seconds = {} if seconds is None else seconds
    spec = margin_rows(labels, graph.classes, images.dtype)
    scores = graph(images)
    correct = scores.argmax(1) == labels
    slack = ROUNDING * scores.abs().amax(1, keepdim=True)
    stage = torch.full(spec.shape[:2], -1, device=images.device)
    if verifier.interval:
        with timed(seconds, "interval"):
            stage[interval(graph, images, eps, spec).lower > slack] = 0
    live = ((stage < 0).any(1) & correct).nonzero().flatten()
    singles = Singles(images, labels, correct, wrong_labels(labels, graph.classes), stage, live, ())
    if not len(live):
        return singles
    with timed(seconds, "crown"):
        first = crown(graph, images[live], eps, spec[live], verifier.linear)
        _mark(stage, live, first.lower > slack[live], 1)
    assert first.lower_planes is not None
    singles = replace(singles, boxes=first.pre_activations, planes=(first.lower_planes,))
    if verifier.alpha is None:
        return singles
    with timed(seconds, "alpha"):
        return _optimised(graph, singles, first, eps, verifier, slack, owner)


def _optimised(
    graph: Graph,
    singles: Singles,
    first: LinearBounds,
    eps: float,
    verifier: Verifier,
    slack: Tensor,
    owner: Tensor | None,
) -> Singles:
    """Optimised slopes for the live images that are still open."""
    assert verifier.alpha is not None
    live, stage = singles.live, singles.stage
    chosen = (stage[live] < 0).any(1)
    if verifier.alpha_images is not None and owner is not None:
        worst = first.lower.masked_fill(stage[live] >= 0, float("inf")).amin(1)
        chosen &= nearest(worst.masked_fill(~chosen, -float("inf")), owner[live], verifier.alpha_images)
    some = chosen.nonzero().flatten()
    planes = first.lower_planes
    assert planes is not None
    if not len(some):
        return singles
    start = LinearBounds(
        first.lower[some],
        first.upper[some],
        tuple(select_box(box, some) for box in first.pre_activations),
        Planes(planes.a[some], planes.b[some]),
    )
    spec = margin_rows(singles.labels[live[some]], graph.classes, singles.images.dtype)
    found = alpha(graph, singles.images[live[some]], eps, spec, verifier.alpha, start)
    assert found.lower_planes is not None
    assert found.slopes is not None
    _mark(stage, live[some], found.lower > slack[live[some]], 2)
    better = Planes(planes.a.clone(), planes.b.clone())
    better.a[some], better.b[some] = found.lower_planes.a, found.lower_planes.b
    slopes = tuple(_scattered(s, some, len(live)) for s in found.slopes)
    boxes = tuple(_with(box, some, tight) for box, tight in zip(singles.boxes, found.pre_activations, strict=True))
    return replace(singles, boxes=boxes, planes=(planes, better), slopes=slopes)


def _with(box: Box, index: Tensor, tight: Box) -> Box:
    """The box with some rows replaced: those of images whose inner boxes were optimised too."""
    return Box(box.centre.index_copy(0, index, tight.centre), box.radius.index_copy(0, index, tight.radius))


def _scattered(slopes: Tensor, index: Tensor, count: int) -> Tensor:
    whole = slopes.new_zeros(count, *slopes.shape[1:])
    whole[index] = slopes.detach()
    return whole


def nearest(score: Tensor, owner: Tensor, count: int) -> Tensor:
    """(n,): among the `count` highest scores of its group."""
    order = score.argsort(descending=True)
    keep = torch.zeros_like(score, dtype=torch.bool)
    for group in owner.unique():
        keep[order[owner[order] == group][:count]] = True
    return keep


def _mark(stage: Tensor, where: Tensor, proved: Tensor, number: int) -> None:
    part = stage[where]
    stage[where] = torch.where(proved & (part < 0), number, part)


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
