"""From what the cascade found to certificates: the only place where the prover meets the checker's classes."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from citrus.certify.alone import Singles
from citrus.certify.cascade import BlockProof
from citrus.certify.refine.rounds import OpenGroup
from citrus.certify.refine.sets import JointResult, Subset
from citrus.certify.result import ALONE, GroupResult
from citrus.certify.settings import Question
from citrus.checker.certificate import certificate_path as certificate_path
from citrus.checker.certificate import fingerprint as fingerprint
from citrus.checker.certificate import write_certificates
from citrus.checker.planes import PlaneSource
from citrus.checker.proofs import Certificate, Proof, Round


def write_block(
    folder: Path,
    question: Question,
    block: BlockProof,
    network_path: str | None = None,
    skip: frozenset[int] = frozenset(),
) -> dict[int, int]:
    """Write a certificate for each group of a block, without those in `skip`; how many images each file proves, by the
    group's number."""
    certificates = [given for given in certificates_of(question, block) if given.number not in skip]
    written = write_certificates(folder, question.graph, certificates, network_path)
    return {given.number: file.survivors for given, file in zip(certificates, written, strict=True)}


def certificates_of(question: Question, block: BlockProof) -> list[Certificate]:
    """The proofs of each group of a block; none for a block that ended in an error."""
    if block.singles is None:
        return []
    export = _BlockExport(question, block.singles)
    return [export.certificate(k, row, block.work.get(k)) for k, row in enumerate(block.rows)]


class _BlockExport:
    """The groups of a block. A certificate names images by their place in the group, and each plane is made once."""

    def __init__(self, question: Question, singles: Singles) -> None:
        self.question, self.singles = question, singles
        self.place = singles.place
        self.home: dict[int, int] = {}  # place in the block -> place in the group
        self.made: dict[tuple[int, int, int], PlaneSource] = {}

    def certificate(self, k: int, row: GroupResult, work: OpenGroup | None) -> Certificate:
        singles, mine = self.singles, self.singles.owner == k
        members = mine.nonzero().flatten().tolist()
        self.home |= {image: i for i, image in enumerate(members)}
        proofs = [proof for image in members for proof in self._alone(image)]
        hard: list[int] = []
        parts: list[tuple[int, ...]] = []
        if work is not None:
            hard = [int(singles.live[place]) for place in work.places]
            parts = [tuple(self.home[hard[i]] for i in part) for part in work.result.parts]
            proofs += [*self._conflicts(hard, work), *map(self._joint, work.proofs)]
        return Certificate(
            number=row.group,
            index=singles.index[mine].cpu(),
            images=singles.images[mine].cpu(),
            labels=singles.labels[mine].cpu(),
            eps=self.question.eps,
            intermediate=self.question.verifier.linear.intermediate,
            arithmetic=self.question.settings.arithmetic,
            proofs=tuple(proofs),
            survivors=row.certified,
            parts=(*((self.home[image],) for image in members if image not in hard), *parts),
        )

    def _source(self, image: int, row: int, kind: int) -> PlaneSource:
        """The plane of a row of an image of the block: kind 0 with adaptive slopes, 1 with optimised ones."""
        key = (image, row, kind)
        if key not in self.made:
            slopes = _flat(s[self.place[image], row, None] for s in self.singles.slopes)[0] if kind else None
            self.made[key] = PlaneSource(self.home[image], int(self.singles.wrong[image, row]), slopes)
        return self.made[key]

    def _alone(self, image: int) -> Iterator[Proof]:
        """The proofs of labels by themselves."""
        if not bool(self.singles.correct[image]):
            return
        labels, stages = self.singles.wrong[image].tolist(), self.singles.stage[image].tolist()
        for row, (label, stage) in enumerate(zip(labels, stages, strict=True)):
            choices = ((self.home[image], label),)
            if stage == ALONE.index("alpha"):
                yield Proof(choices, (self._source(image, row, 1),), (1.0,))
            elif stage >= 0 and image in self.place and bool(self.singles.by_crown[self.place[image], row]):
                yield Proof(choices, (self._source(image, row, 0),), (1.0,))
            elif stage >= 0:
                yield Proof(choices)

    def _conflicts(self, hard: list[int], work: OpenGroup) -> Iterator[Proof]:
        """What the search proved with the planes of a group; cuts come with the joint proofs."""
        undecided, kinds = self.singles.open, len(self.singles.planes)
        rows = [(image, row) for image in hard for row in undecided[image].nonzero().flatten().tolist()]
        for conflict in work.result.conflicts:
            if conflict.planes:
                planes = tuple(self._source(*rows[p // kinds], p % kinds) for p in conflict.planes)
                choices = tuple((self.home[hard[i]], j) for i, j in conflict.choices)
                yield Proof(choices, planes, conflict.lambdas)

    def _joint(self, result: JointResult) -> Proof:
        weights = result.proof.tolist()
        used = [m for m, weight in enumerate(weights) if weight > 0]
        rows = self._members(result.choices, result.slopes)
        rounds = tuple(
            Round(self._members(result.choices, part.slopes), part.neurons, part.multipliers)
            for part in result.assumptions
        )
        choices = tuple(self._choice(place, label) for place, label in result.core)
        return Proof(choices, tuple(rows[m] for m in used), tuple(weights[m] for m in used), rounds)

    def _members(self, choices: Subset, slopes: tuple[Tensor, ...]) -> tuple[PlaneSource, ...]:
        homes = [self._choice(place, label) for place, label in choices]
        return tuple(PlaneSource(i, j, own) for (i, j), own in zip(homes, _flat(slopes, len(homes)), strict=True))

    def _choice(self, place: int, label: int) -> tuple[int, int]:
        """A choice by its place among the live images, as a choice of the group."""
        return self.home[int(self.singles.live[place])], label


def _flat(slopes: Iterable[Tensor], rows: int = 1) -> Tensor:
    """Slopes (row, *neurons) of each ReLU in one piece: (row, neuron)."""
    return torch.cat([torch.zeros(rows, 0), *(s.flatten(1).cpu() for s in slopes)], 1)
