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
from citrus.checker.cover import Choice, Conflicts, are_apart, most_lost
from citrus.checker.dual import Dual, DualSums
from citrus.checker.enclosure import Enclosure
from citrus.checker.planes import PlaneSource, planes_of
from citrus.checker.tightening import UndecidedNeurons, tightened
from citrus.errors import CitrusError
from citrus.networks.operations import Arithmetic

Intermediate = Literal["interval", "early", "crown"]
"""Which boxes that enter ReLU layers are made by substitution: none, those of the first two layers, or all."""


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
    """Images that were counted together, if the search split them; see cover.most_lost. None: all of them."""
    duals: tuple[Dual, ...] = ()
    """Bounds of how many of further images are lost."""
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
        self.planes: dict[PlaneSource, LinearForms] = {}  # one row each, of proofs about several images
        self.kept: dict[int, tuple[Enclosure, UndecidedNeurons]] = {}  # by image, for proofs by contradiction

    def values(self, proofs: Sequence[Proof], sums: Sequence[DualSums] = ()) -> list[Value]:
        """The value of each proof, in their order. The planes of duals are made along the way, and added up."""
        used = dict.fromkeys(row for p in proofs for row in p.sources)
        useless = {row for row in used if not row.is_usable(self.network)}
        sound = [p for p in proofs if self._well_formed(p) and useless.isdisjoint(p.sources)]
        found = self._enclose([proof for proof in sound if not proof.rounds], sums)
        found |= {proof: self._by_contradiction(proof) for proof in sound if proof.rounds}
        return [found.get(proof, INVALID) for proof in proofs]

    def sums(self, duals: Iterable[Dual]) -> list[DualSums]:
        """Those that are well-formed, ready to be added up."""
        exists = [[j for j in range(self.classes) if j != y] for y in self.labels]
        pixels = prod(self.network.shapes[0])
        return [
            DualSums(dual, self.eps)
            for dual in duals
            if dual.is_well_formed(len(self.images), pixels, dict(enumerate(exists)))
            and all(row.is_usable(self.network) for row in dual.sources)
        ]

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

    def _enclose(self, proofs: Sequence[Proof], sums: Sequence[DualSums]) -> dict[Proof, Value]:
        """The values of these proofs, from planes and margins that are made image by image. Planes are kept for proofs
        about several images only."""
        rows: dict[int, dict[PlaneSource, None]] = defaultdict(dict)  # by image, each once
        claims: dict[int, list[int]] = defaultdict(list)  # wrong labels by image
        waiting: dict[int, list[Proof]] = defaultdict(list)  # by the last image of theirs
        for proof in proofs:
            waiting[max(image for image, _ in proof.choices)].append(proof)
            if not proof.rows and proof.choices[0] not in self.margins:
                claims[proof.choices[0][0]].append(proof.choices[0][1])
            for row in proof.rows:
                rows[row.image][row] = None
        for one in sums:
            for row in one.dual.sources:
                rows[row.image][row] = None
        shared = {row for proof in proofs if len({i for i, _ in proof.choices}) > 1 for row in proof.rows}
        found: dict[Proof, Value] = {}
        for image in sorted({*rows, *claims, *waiting}):
            self._visit(image, claims[image], list(rows[image]), sums)
            found |= {proof: self._value(proof) for proof in waiting[image]}
            for row in rows[image].keys() - shared:
                del self.planes[row]
        return found

    def _visit(self, image: int, claims: list[int], sources: list[PlaneSource], sums: Sequence[DualSums]) -> None:
        """All margins and planes of one image."""
        # Interval proofs try the plain boxes first: they cost next to nothing.
        boxes = Enclosure(self.network, self.images[image], self.eps, refined=0)
        left = self._by_interval(boxes, image, claims)
        if self.refined and (sources or left):
            boxes = self.kept[image][0] if image in self.kept else self._refined(image)
            self._by_interval(boxes, image, left)
        for source, row in planes_of(boxes, self.labels[image], sources):
            self.planes[source] = row
            for one in sums:
                one.take(source, row)

    def _refined(self, image: int) -> Enclosure:
        return Enclosure(self.network, self.images[image], self.eps, self.refined)

    def _by_interval(self, boxes: Enclosure, image: int, claims: list[int]) -> list[int]:
        """Note the margins of these wrong labels on the boxes; returns the labels that are not proved by it."""
        if claims:
            margins = boxes.interval_margins(self.labels[image], torch.tensor(claims))
            self.margins.update({(image, j): m for j, m in zip(claims, margins.tolist(), strict=True)})
        return [j for j in claims if not self.margins[image, j] > 0]

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


def implied(
    certificate: Certificate, classes: int, proofs: Iterable[Proof], sums: Sequence[DualSums] = (), slack: float = 0.0
) -> int:
    """How many images of the group survive by these proofs, and by duals whose planes are added up."""
    labels, count = certificate.labels.tolist(), len(certificate.labels)
    wrong = [[j for j in range(classes) if j != y] for y in labels]
    duals = [one.dual.images for one in sums]
    parts = [range(count)] if certificate.parts is None else certificate.parts
    if not are_apart([*parts, *duals], count):
        return 0
    conflicts = Conflicts(proof.choices for proof in proofs)
    others = most_lost(conflicts, wrong, parts) - sum(map(len, duals))
    return count - others - sum(one.lost(conflicts, wrong, slack) for one in sums)
