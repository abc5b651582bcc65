"""Proofs about one group of images, and their evaluation in float64: the heart of the checker.

A *choice* is (image, wrong label). A proof says of a set of choices that no perturbation |delta|_inf <= eps violates
all of them. It is redone from what it names: planes margin_p(delta) >= a_p . delta + b_p - e_p of members of the set
(enclosure.py; e_p bounds the rounding of plane p) and weights lambda >= 0, which prove the set when

    sum_p lambda_p (b_p - e_p) - eps || sum_p lambda_p a_p ||_1 > the rounding of this sum.

A proof by contradiction has rounds before that, in which boxes are tightened where all choices of the set are violated
(tightening.py); its planes are then made on those boxes and serve in this proof alone.

A proof without planes is about one choice and rests on intervals: the lower bound of its margin on the boxes of the
last layer must be positive. Nothing here trusts whoever made the proof; a proof that is not sound has a negative value.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from citrus.checker.arithmetic import TINY, LinearForms, Network, gamma
from citrus.checker.cover import Choice, covers
from citrus.checker.enclosure import Enclosure
from citrus.checker.tightening import UndecidedNeurons, tightened
from citrus.errors import CitrusError
from citrus.networks.operations import Arithmetic

Intermediate = Literal["interval", "early", "crown"]
"""Which boxes that enter ReLU layers are made by substitution: none, those of the first two layers, or all."""


@dataclass(frozen=True, eq=False)
class PlaneSource:
    """What a lower plane of a margin is made from; an object that several proofs share is computed once."""

    image: int  # position in the group
    label: int  # the wrong label
    slopes: Tensor | None = None
    """Lower slopes of all ReLUs in the network's order, in [0, 1] or as bytes 0..255: (neuron,); None takes adaptive
    ones, 1 where u > -l, else 0."""

    @property
    def exact_slopes(self) -> Tensor:
        """In float64; none if they are adaptive."""
        if self.slopes is None:
            return torch.zeros(0, dtype=torch.float64)
        return self.slopes.detach().cpu().double() / (255 if self.slopes.dtype == torch.uint8 else 1)


@dataclass(frozen=True, eq=False)
class Round:
    """Boxes of the last ReLUs are tightened, assuming that the margins of `rows` are <= 0."""

    rows: tuple[PlaneSource, ...]  # made on the boxes as they were before the round
    neurons: tuple[Tensor, ...]  # for the image of each row, the neurons whose bounds follow: (neuron,)
    multipliers: tuple[Tensor, ...]
    """For the image of each row, mu of the lower, then of the upper bounds: (2 neuron, row)."""


@dataclass(frozen=True)
class Proof:
    """No perturbation violates all of `choices`: by planes with weights lambda, or without planes by intervals."""

    choices: tuple[Choice, ...]
    rows: tuple[PlaneSource, ...] = ()
    lambdas: tuple[float, ...] = ()
    rounds: tuple[Round, ...] = ()
    """Of a proof by contradiction, in order. The planes of `rows` are made after the last."""

    @property
    def sources(self) -> tuple[PlaneSource, ...]:
        """All planes, those of the rounds first."""
        return (*(row for part in self.rounds for row in part.rows), *self.rows)


@dataclass(frozen=True, eq=False)
class Certificate:
    """At least `survivors` of a group's images are classified right under every shared perturbation |delta| <= eps."""

    number: int  # of the group: its file is called by it
    index: Tensor  # positions of the images in the data set: (image,)
    images: Tensor  # float32 in pixel units: (image, C, H, W)
    labels: Tensor  # true labels: (image,)
    eps: float
    intermediate: Intermediate
    proofs: tuple[Proof, ...]
    survivors: int  # what the proofs imply
    parts: tuple[tuple[int, ...], ...] | None = None
    """Images that were counted together, if the search split them; see cover.covers."""
    arithmetic: Arithmetic = "real"  # what the network is: a real function, or every program in float32
    network: str = ""  # fingerprint of the network
    network_path: str | None = None  # where the network lay when the certificate was written


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


class Evaluator:
    """Evaluates the proofs of one group. Boxes are made for one image at a time; planes are kept for further calls."""

    def __init__(
        self, network: Network, images: Tensor, labels: Tensor, eps: float, intermediate: Intermediate
    ) -> None:
        if tuple(images.shape[1:]) != network.shapes[0]:
            raise CitrusError(f"The network takes images of shape {network.shapes[0]}, got {tuple(images.shape[1:])}.")
        if intermediate not in get_args(Intermediate):
            raise CitrusError(f"Intermediate boxes are made by crown, early or interval, got {intermediate!r}.")
        if not 0 <= eps < float("inf"):  # below zero the formula of the dual would prove anything
            raise CitrusError(f"eps must be a finite number >= 0, got {eps}.")
        self.network, self.images, self.eps = network, images, eps
        self.refined = {"interval": 0, "early": 2, "crown": len(network.relus)}[intermediate]
        self.labels: list[int] = labels.tolist()
        self.classes = network.shapes[-1][0]
        if len(self.labels) != len(images) or any(not 0 <= y < self.classes for y in self.labels):
            raise CitrusError(f"Each image needs a label in 0..{self.classes - 1}, got {self.labels}.")
        self.margins: dict[Choice, float] = {}  # lower bounds by intervals
        self.planes: dict[PlaneSource, LinearForms] = {}  # one row each
        self.kept: dict[int, tuple[Enclosure, UndecidedNeurons]] = {}  # by image, for proofs by contradiction

    def values(self, proofs: Sequence[Proof]) -> list[Value]:
        """The value of each proof, in their order."""
        useless = {row for row in dict.fromkeys(row for p in proofs for row in p.sources) if not self._usable(row)}
        sound = [p for p in proofs if self._well_formed(p) and useless.isdisjoint(p.sources)]
        self._enclose([proof for proof in sound if not proof.rounds])
        found = {proof: self._by_contradiction(proof) if proof.rounds else self._value(proof) for proof in sound}
        return [found.get(proof, INVALID) for proof in proofs]

    def _usable(self, source: PlaneSource) -> bool:
        """Adaptive slopes, or as many as there are ReLUs, all in [0, 1]."""
        slopes = source.exact_slopes
        whole = slopes.shape == (self.network.neurons,) and bool(((slopes >= 0) & (slopes <= 1)).all())  # no NaN
        return source.slopes is None or whole

    def _well_formed(self, proof: Proof) -> bool:
        """Choices exist and are wrong labels; planes belong to choices and have weights >= 0; intervals prove one."""
        exist = all(0 <= i < len(self.labels) and 0 <= j < self.classes for i, j in proof.choices)
        if not exist or any(self.labels[i] == j for i, j in proof.choices):
            return False
        if not proof.rows:
            return len(proof.choices) == 1 and not proof.lambdas and not proof.rounds
        named = all((row.image, row.label) in proof.choices for row in proof.sources)
        weighted = len(proof.lambdas) == len(proof.rows) and all(0 <= x < float("inf") for x in proof.lambdas)
        sloped = not proof.rounds or all(row.slopes is not None for row in proof.sources)
        return named and weighted and sloped and all(map(self._well_assumed, proof.rounds))

    def _well_assumed(self, part: Round) -> bool:
        """A round assumes something, and names neurons that exist, with multipliers >= 0."""
        if not part.rows or not len(part.rows) == len(part.neurons) == len(part.multipliers) or not self.network.relus:
            return False
        width = prod(self.network.shapes[self.network.relus[-1] + 1])
        return all(
            which.dim() == 1
            and not which.is_floating_point()
            and mu.shape == (2 * len(which), len(part.rows))
            and bool(((which >= 0) & (which < width)).all())
            and bool(((mu >= 0) & (mu < float("inf"))).all())  # False for NaN
            for which, mu in zip(part.neurons, part.multipliers, strict=True)
        )

    def _enclose(self, proofs: Sequence[Proof]) -> None:
        """All planes and margins that these proofs ask for and that are not known, image by image."""
        rows: dict[int, dict[PlaneSource, None]] = defaultdict(dict)  # by image, each once
        claims: dict[int, list[int]] = defaultdict(list)  # wrong labels by image
        for proof in proofs:
            if not proof.rows and proof.choices[0] not in self.margins:
                claims[proof.choices[0][0]].append(proof.choices[0][1])
            for row in proof.rows:
                if row not in self.planes:
                    rows[row.image][row] = None
        for image in sorted({*rows, *claims}):
            # Interval proofs try the plain boxes first: they cost next to nothing.
            boxes = Enclosure(self.network, self.images[image], self.eps, refined=0)
            left = self._by_interval(boxes, image, claims[image])
            if self.refined and (rows[image] or left):
                boxes = self.kept[image][0] if image in self.kept else self._refined(image)
                self._by_interval(boxes, image, left)
            self._add_planes(boxes, image, list(rows[image]))

    def _refined(self, image: int) -> Enclosure:
        return Enclosure(self.network, self.images[image], self.eps, self.refined)

    def _by_interval(self, boxes: Enclosure, image: int, claims: list[int]) -> list[int]:
        """Note the margins of these wrong labels on the boxes; returns the labels that are not proved by it."""
        if claims:
            margins = boxes.interval_margins(self.labels[image], torch.tensor(claims))
            self.margins.update({(image, j): m for j, m in zip(claims, margins.tolist(), strict=True)})
        return [j for j in claims if not self.margins[image, j] > 0]

    def _add_planes(self, boxes: Enclosure, image: int, sources: list[PlaneSource]) -> None:
        """Planes of one image: those with adaptive slopes together, and those with slopes of their own together."""
        for adaptive in (True, False):
            batch = [source for source in sources if (source.slopes is None) is adaptive]
            if batch:
                wrong = torch.tensor([source.label for source in batch])
                slopes = None if adaptive else torch.stack([source.exact_slopes for source in batch])
                rows = boxes.planes(self.labels[image], wrong, slopes)
                self.planes.update({source: rows[k : k + 1] for k, source in enumerate(batch)})

    def _by_contradiction(self, proof: Proof) -> Value:
        """The value of a proof with rounds: boxes are tightened round by round, the last planes are made on them."""
        for image in {row.image for row in proof.sources} - set(self.kept):
            boxes = self._refined(image)
            self.kept[image] = boxes, UndecidedNeurons.of(boxes)
        last = {row.image: self.kept[row.image][0].last for row in proof.sources}

        def planes(rows: tuple[PlaneSource, ...]) -> LinearForms:
            made = []
            for row in rows:
                boxes, wrong = self.kept[row.image][0], torch.tensor([row.label])
                made.append(boxes.planes(self.labels[row.image], wrong, row.exact_slopes[None], last[row.image]))
            return LinearForms.joined(made)

        for part in proof.rounds:
            violated = planes(part.rows)
            for row, which, mu in zip(part.rows, part.neurons, part.multipliers, strict=True):
                neurons = self.kept[row.image][1]
                last[row.image] = tightened(last[row.image], neurons, which.long(), mu, violated, self.eps)
        return self._dual(planes(proof.rows), proof.lambdas)

    def _value(self, proof: Proof) -> Value:
        """The value of a proof whose planes or margin are known."""
        if not proof.rows:
            return Value(self.margins[proof.choices[0]], 0.0)  # its rounding is subtracted already
        return self._dual(LinearForms.joined([self.planes[row] for row in proof.rows]), proof.lambdas)

    def _dual(self, planes: LinearForms, weights: tuple[float, ...]) -> Value:
        lambdas = torch.tensor(weights, dtype=torch.float64)
        mixed = lambdas @ planes.values
        value = lambdas @ planes.offset - self.eps * mixed.abs().sum()
        size = lambdas @ (planes.offset.abs() + self.eps * planes.values.abs().sum(1))
        rounding = (
            gamma(len(weights) + mixed.numel()) * size + lambdas @ planes.error * (1 + gamma(len(weights))) + TINY
        )
        return Value(float(value), float(rounding))


def confirmed(certificate: Certificate, classes: int, proofs: Iterable[Proof], survivors: int) -> bool:
    """Do these proofs alone imply that so many images of the group survive? Every label not proved counts as open."""
    wrong = [[j for j in range(classes) if j != y] for y in certificate.labels.tolist()]
    choices = [proof.choices for proof in proofs]
    return 0 <= survivors <= len(wrong) and covers(choices, wrong, survivors, certificate.parts)
