"""Proofs of one image at a time: intervals, linear bounds, optimised slopes, each for what cheaper ones left open.

What these leave open goes on as planes. They are computed again in float64, for few rows are left, so that next to
nothing of them is lost to rounding; some rows are proved by that alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds import (
    Box,
    LinearBounds,
    Planes,
    alpha,
    crown,
    interval,
    lower_planes,
    margin_rows,
    proves,
    wrong_labels,
)
from citrus.bounds.chunks import MemoryLimit, in_chunks
from citrus.bounds.rounding import below
from citrus.bounds.substitution import footprint
from citrus.certify.result import ALONE
from citrus.certify.settings import Question


@dataclass(frozen=True)
class Block:
    """Images that go through the stages together, in whole groups."""

    index: Tensor  # places of the images in the data set: (n,)
    images: Tensor
    labels: Tensor
    predicted: Tensor  # the class that each image is taken for as it is: (n,)
    owner: Tensor  # the group of each image, counted from 0: (n,)

    @property
    def correct(self) -> Tensor:
        """Which images are classified right: (n,)."""
        return self.predicted == self.labels


@dataclass(frozen=True)
class Singles(Block):
    """A block with what is proved about its images one by one, and the planes under what is still open."""

    wrong: Tensor  # the wrong label of each row: (n, rows)
    stage: Tensor  # which of the stages ALONE proved the row, -1 for none: (n, rows)
    live: Tensor  # the images that linear bounds were computed for: (m,)
    boxes: tuple[Box, ...]  # of the live images, one per ReLU
    by_crown: Tensor  # which rows of the live images planes with adaptive slopes prove: (m, rows)
    slopes: tuple[Tensor, ...]  # the optimised slopes of each ReLU: (m, rows, *neurons)
    choices: Tensor  # (k, 2): image, row of what is open, in order, and
    planes: tuple[Planes, ...]  # its planes in float64, (k, pixels) and (k,): by CROWN, and by optimised slopes

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
    stage = torch.full(spec.shape[:2], -1, device=spec.device)
    if verifier.interval:
        with question.timed("interval"):
            stage[proves(interval(graph, block.images, eps, spec).lower)] = ALONE.index("interval")
    live = ((stage < 0).any(1) & block.correct).nonzero().flatten()
    bounds: list[LinearBounds] = []
    if len(live):
        with question.timed("crown"):
            found = crown(graph, block.images[live], eps, spec[live], verifier.linear)
            _mark(stage, live, proves(found.lower), "crown")
            hard = (stage[live] < 0).any(1).nonzero()[:, 0]
            bounds = [_sharper(question, block.images, spec, (live, hard), found) if verifier.sharp else found]
            _mark(stage, live, proves(bounds[0].lower), "crown")
    if verifier.alpha is not None and bool((stage[live] < 0).any()):
        with question.timed("alpha"):
            bounds.append(alpha(graph, block.images[live], eps, spec[live], verifier.alpha, bounds[0]))
            _mark(stage, live, proves(bounds[1].lower), "alpha")
    by_crown = proves(bounds[0].by_planes) if bounds else stage.new_zeros(0, stage.shape[1], dtype=torch.bool)
    choices, planes = _open_planes(question, block, (spec, live, stage, by_crown), bounds)
    return Singles(
        **vars(block),
        wrong=wrong_labels(block.labels, graph.classes),
        stage=stage,
        live=live,
        boxes=bounds[0].pre_activations if bounds else (),
        by_crown=by_crown,
        slopes=bounds[-1].slopes if bounds else (),
        choices=choices,
        planes=planes,
    )


def _sharper(
    question: Question, images: Tensor, spec: Tensor, which: tuple[Tensor, Tensor], found: LinearBounds
) -> LinearBounds:
    """Bounds of live images, those that are still open computed once more in float64, where next to nothing of the
    boxes of inner layers is lost to rounding. `which` are the live images, and the places of the open ones among them.
    """
    live, hard = which
    dtype = images.dtype
    if not len(hard) or dtype == torch.float64:
        return found
    some, graph = live[hard], question.graph.double()
    wide = crown(graph, images[some].double(), question.eps, spec[some].double(), question.verifier.linear)
    lower, by_planes = (
        getattr(found, name).index_put((hard,), torch.maximum(getattr(found, name)[hard], below(bound, dtype)))
        for name, bound in (("lower", wide.lower), ("by_planes", wide.by_planes))
    )
    boxes = tuple(
        Box(box.centre.index_put((hard,), own.centre), box.radius.index_put((hard,), own.radius))
        for box, own in zip(found.pre_activations, (box.around(dtype) for box in wide.pre_activations), strict=True)
    )
    return replace(found, lower=lower, by_planes=by_planes, pre_activations=boxes)


def _mark(stage: Tensor, where: Tensor, proved: Tensor, name: str) -> None:
    """Note the stage for rows of some images that are proved now and were not before."""
    part = stage[where]
    stage[where] = torch.where(proved & (part < 0), ALONE.index(name), part)


def _open_planes(
    question: Question, block: Block, rows: tuple[Tensor, Tensor, Tensor, Tensor], bounds: Sequence[LinearBounds]
) -> tuple[Tensor, tuple[Planes, ...]]:
    """Of each row that is open its place and its planes; those that these prove are noted in `stage` and left out."""
    spec, live, stage, by_crown = rows
    place, row = (stage[live] < 0).nonzero(as_tuple=True)
    image, made = live[place], list[Planes]()
    for found, name in zip(bounds, ("crown", "alpha"), strict=False):
        with question.timed(name):
            made.append(_in_float64(question, block.images, spec, (image, row, place), found))
            proved = proves(made[-1].lower(question.eps))[:, 0] & (stage[image, row] < 0)
            stage[image[proved], row[proved]] = ALONE.index(name)
            if name == "crown":
                by_crown[place[proved], row[proved]] = True
    left = stage[image, row] < 0
    flat = tuple(Planes(planes.a.flatten(1)[left], planes.b[left, 0]) for planes in made)
    return torch.stack([image, row], 1)[left], flat


def _in_float64(
    question: Question, images: Tensor, spec: Tensor, rows: tuple[Tensor, Tensor, Tensor], bounds: LinearBounds
) -> Planes:
    """The planes of some rows, each given by its image, its number, and the place of the image among the bounds."""
    graph = question.graph.double()

    def work(some: slice, _: slice) -> tuple[Tensor, ...]:
        image, row, place = (t[some] for t in rows)
        centre = images[image].double()
        boxes = [Box(box.centre[place].double(), box.radius[place].double()) for box in bounds.pre_activations]
        slopes = [slope[place, row].double() for slope in bounds.slopes] or None
        radius = torch.full_like(centre[:1], question.eps)
        planes = lower_planes(graph, centre, radius, spec[image, row].double()[:, None], boxes, slopes)
        return planes.a, planes.b

    row_bytes = 16 * footprint(graph, len(graph.nodes)) * torch.float64.itemsize
    return Planes(*in_chunks((len(rows[0]), 1), row_bytes, MemoryLimit.of(None, images.device), work))
