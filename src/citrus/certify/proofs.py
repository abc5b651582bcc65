"""Proofs about one group of images, and their evaluation in float64: the heart of the checker.

A *choice* is (image, wrong label). A proof says of a set of choices that no perturbation |delta|_inf <= eps violates
all of them. It is redone from what it names: planes margin_p(delta) >= a_p . delta + b_p - e_p of members of the set
(enclosure.py; e_p bounds the rounding of plane p) and weights lambda >= 0, which prove the set when

    sum_p lambda_p (b_p - e_p) - eps || sum_p lambda_p a_p ||_1 > the rounding of this sum.

A proof without planes is about one choice and rests on intervals: the lower bound of its margin on the boxes of the
last layer must be positive. Nothing here trusts whoever made the proof; a proof that is not sound has a negative value.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from citrus.certify.cover import Choice, covers
from citrus.certify.enclosure import Enclosure
from citrus.certify.float64 import TINY, Network, gamma
from citrus.errors import CitrusError

Intermediate = Literal["interval", "crown"]


@dataclass(frozen=True, eq=False)
class PlaneSource:
    """What a lower plane of a margin is made from; an object that several proofs share is computed once."""

    image: int
    """Position in the group."""
    label: int
    """The wrong label."""
    slopes: tuple[Tensor, ...] | None = None
    """Lower slopes of all ReLUs in the network's order, in [0, 1] or as bytes 0..255; None: 1 where u > -l, else 0."""


@dataclass(frozen=True)
class Proof:
    """No perturbation violates all of `choices`: by planes with weights lambda, or without planes by intervals."""

    choices: tuple[Choice, ...]
    rows: tuple[PlaneSource, ...] = ()
    lambdas: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class GroupCertificate:
    """At least `survivors` of the images are classified right under every shared perturbation, because of `proofs`."""

    number: int
    """Of the group: its file is called by it."""
    index: Tensor
    """(image,) positions in the data set"""
    images: Tensor
    """(image, C, H, W) float32 in pixel units"""
    labels: Tensor
    """(image,)"""
    proofs: tuple[Proof, ...]
    survivors: int
    parts: tuple[tuple[int, ...], ...] | None = None
    """Images that were counted together, if the search split them; see cover.covers."""


@dataclass(frozen=True)
class Value:
    """A computed value and how far it may be from the true one. The proof holds when it is above that."""

    value: float
    rounding: float

    @property
    def holds(self) -> bool:
        finite = abs(self.value) < float("inf")  # also False for NaN
        return finite and self.value > self.rounding >= 0


INVALID = Value(float("nan"), float("nan"))


@dataclass(frozen=True)
class _Plane:
    slope: Tensor  # (pixel,)
    norm: float
    offset: float
    error: float


class Evaluator:
    """Evaluates the proofs of one group. Boxes are made for one image at a time; planes are kept for further calls."""

    def __init__(
        self, network: Network, images: Tensor, labels: Tensor, eps: float, intermediate: Intermediate
    ) -> None:
        if tuple(images.shape[1:]) != network.shapes[0]:
            raise CitrusError(f"The network takes images of shape {network.shapes[0]}, got {tuple(images.shape[1:])}.")
        if intermediate not in ("interval", "crown"):
            raise CitrusError(f"Intermediate bounds are 'crown' or 'interval', got {intermediate!r}.")
        if not 0 <= eps < float("inf"):  # below zero the formula of the dual would prove anything
            raise CitrusError(f"eps must be a finite number >= 0, got {eps}.")
        self.network, self.images, self.eps, self.refine = network, images, eps, intermediate == "crown"
        self.labels: list[int] = labels.tolist()
        self.classes = network.shapes[-1][0]
        if len(self.labels) != len(images) or any(not 0 <= y < self.classes for y in self.labels):
            raise CitrusError(f"Each image needs a label in 0..{self.classes - 1}, got {self.labels}.")
        self.margins: dict[Choice, float] = {}  # lower bounds by intervals
        self.planes: dict[PlaneSource, _Plane | None] = {}

    def values(self, proofs: Sequence[Proof]) -> list[Value]:
        """The value of each proof, in their order."""
        sound = [self._well_formed(proof) for proof in proofs]
        rows: dict[int, list[PlaneSource]] = defaultdict(list)
        claims: dict[int, list[int]] = defaultdict(list)
        for proof in (proof for proof, fine in zip(proofs, sound, strict=True) if fine):
            if not proof.rows and proof.choices[0] not in self.margins:
                claims[proof.choices[0][0]].append(proof.choices[0][1])
            for row in proof.rows:
                if row not in self.planes:
                    self.planes[row] = None
                    rows[row.image].append(row)
        for image in sorted({*rows, *claims}):
            self._enclose(image, rows[image], claims[image])
        return [self._value(proof) if fine else INVALID for proof, fine in zip(proofs, sound, strict=True)]

    def _well_formed(self, proof: Proof) -> bool:
        """Choices exist and are wrong labels; planes belong to choices and have weights >= 0; intervals prove one."""
        exist = all(0 <= i < len(self.labels) and 0 <= j < self.classes for i, j in proof.choices)
        if not exist or any(self.labels[i] == j for i, j in proof.choices):
            return False
        if not proof.rows:
            return len(proof.choices) == 1 and not proof.lambdas
        named = all((row.image, row.label) in proof.choices for row in proof.rows)
        return named and len(proof.lambdas) == len(proof.rows) and all(0 <= x < float("inf") for x in proof.lambdas)

    def _enclose(self, image: int, sources: list[PlaneSource], claims: list[int]) -> None:
        """All that is asked about one image. Interval proofs try the plain boxes first: they cost next to nothing."""
        boxes = Enclosure(self.network, self.images[image], self.eps, refine=False)
        left = self._by_interval(boxes, image, claims)
        if self.refine and (sources or left):
            boxes = Enclosure(self.network, self.images[image], self.eps, refine=True)
            self._by_interval(boxes, image, left)
        self._add_planes(boxes, sources)

    def _by_interval(self, boxes: Enclosure, image: int, claims: list[int]) -> list[int]:
        """Note the margins of these wrong labels on the boxes; returns the labels that are not proved by it."""
        if claims:
            margins = boxes.interval_margins(self.labels[image], torch.tensor(claims))
            self.margins.update({(image, j): m for j, m in zip(claims, margins.tolist(), strict=True)})
        return [j for j in claims if not self.margins[image, j] > 0]

    def _add_planes(self, boxes: Enclosure, sources: list[PlaneSource]) -> None:
        """Planes of one image: those with adaptive slopes together, and those with slopes of their own together."""
        slopes = {source: flat_slopes(source.slopes) for source in sources if source.slopes is not None}
        usable = {s: t for s, t in slopes.items() if t.numel() == self.network.neurons and bool(_in_range(t))}
        batches: list[tuple[list[PlaneSource], Tensor | None]] = [([s for s in sources if s.slopes is None], None)]
        if usable:
            batches.append((list(usable), torch.stack(list(usable.values()))))
        for batch, given in batches:
            if batch:
                wrong = torch.tensor([source.label for source in batch])
                rows = boxes.planes(self.labels[batch[0].image], wrong, given)
                for k, source in enumerate(batch):
                    slope = rows.values[k]
                    self.planes[source] = _Plane(
                        slope, float(slope.abs().sum()), float(rows.offset[k]), float(rows.error[k])
                    )

    def _value(self, proof: Proof) -> Value:
        if not proof.rows:
            return Value(self.margins[proof.choices[0]], 0.0)  # its rounding is subtracted already
        planes = [plane for row in proof.rows if (plane := self.planes[row]) is not None]
        if len(planes) < len(proof.rows):
            return INVALID
        lambdas = torch.tensor(proof.lambdas, dtype=torch.float64)
        offsets, errors, norms = torch.tensor([(p.offset, p.error, p.norm) for p in planes], dtype=torch.float64).T
        mixed = lambdas @ torch.stack([p.slope for p in planes])
        value = lambdas @ offsets - self.eps * mixed.abs().sum()
        size = lambdas @ (offsets.abs() + self.eps * norms)
        rounding = gamma(len(planes) + mixed.numel()) * size + lambdas @ errors * (1 + gamma(len(planes))) + TINY
        return Value(float(value), float(rounding))


def flat_slopes(slopes: Iterable[Tensor]) -> Tensor:
    """Slopes in one piece, as float64."""
    scaled = (part.detach().cpu().double() / (255 if part.dtype == torch.uint8 else 1) for part in slopes)
    return torch.cat([part.flatten() for part in scaled])


def _in_range(slopes: Tensor) -> Tensor:
    return ((slopes >= 0) & (slopes <= 1)).all()  # False for NaN


def confirmed(group: GroupCertificate, classes: int, proofs: Iterable[Proof], survivors: int) -> bool:
    """Do these proofs alone imply that so many images of the group survive? Every label not proved counts as open."""
    wrong = [[j for j in range(classes) if j != y] for y in group.labels.tolist()]
    return 0 <= survivors <= len(wrong) and covers([proof.choices for proof in proofs], wrong, survivors, group.parts)
