"""From what the cascade found to certificates: the only place where the prover meets the checker's classes."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from citrus.bounds import Planes
from citrus.certify.alone import Singles
from citrus.certify.cascade import BlockProof
from citrus.certify.refine.sets import JointResult, Subset
from citrus.certify.result import ALONE
from citrus.certify.search.planes import Conflict
from citrus.certify.settings import Question
from citrus.certify.together import GroupProof
from citrus.checker.certificate import certificate_path as certificate_path
from citrus.checker.certificate import fingerprint as fingerprint
from citrus.checker.certificate import write_certificates
from citrus.checker.proofs import Certificate, PlaneSource, Proof, Round


def write_block(folder: Path, question: Question, block: BlockProof, network_path: str | None = None) -> dict[int, int]:
    """Write a certificate for each group of a block; how many images each file proves, by the group's number."""
    certificates = certificates_of(question, block)
    written = write_certificates(folder, question.graph, certificates, network_path)
    return {given.number: file.survivors for given, file in zip(certificates, written, strict=True)}


def certificates_of(question: Question, block: BlockProof) -> list[Certificate]:
    """The proofs of each group of a block; none for a block that ended in an error."""
    if block.singles is None:
        return []
    groups = zip(block.rows, block.groups, strict=True)
    return [_GroupExport(question, block.singles, k).certificate(row.group, p) for k, (row, p) in enumerate(groups)]


class _GroupExport:
    """One group of a block. A certificate names images by their place in the group, and each plane is made once."""

    def __init__(self, question: Question, singles: Singles, number: int) -> None:
        self.question, self.singles = question, singles
        self.mine = singles.block.owner == number
        self.members = self.mine.nonzero().flatten().tolist()
        self.home = {image: i for i, image in enumerate(self.members)}  # place in the block -> place in the group
        self.place = {image: p for image, p in singles.place.items() if image in self.home}
        places = list(self.place.values())
        self.crown: dict[int, list[float]] = {}  # CROWN's bounds of each live image
        if places:
            planes = Planes(singles.planes[0].a[places], singles.planes[0].b[places])
            self.crown = dict(zip(self.place, planes.lower(question.eps).tolist(), strict=True))
        self.made: dict[tuple[int, int, int], PlaneSource] = {}

    def certificate(self, number: int, proof: GroupProof) -> Certificate:
        rows = range(self.singles.wrong.shape[1])
        proofs = [alone for image in self.members for r in rows if (alone := self._alone(image, r)) is not None]
        parts: list[tuple[int, ...]] = [(i,) for image, i in self.home.items() if image not in proof.hard]
        if proof.work is not None:
            hard = [self.home[image] for image in proof.hard]
            parts += [tuple(hard[i] for i in part) for part in proof.work.result.parts]
            proofs += self._conflicts(proof.hard, proof.work.result.conflicts)
            proofs += [self._joint(result) for result in proof.work.proofs]
        block, mine = self.singles.block, self.mine
        return Certificate(
            number=number,
            index=block.index[mine].cpu(),
            images=block.images[mine].cpu(),
            labels=block.labels[mine].cpu(),
            eps=self.question.eps,
            intermediate=self.question.verifier.linear.intermediate,
            proofs=tuple(proofs),
            survivors=proof.certified,
            parts=tuple(parts),
        )

    def _source(self, image: int, row: int, kind: int) -> PlaneSource:
        """The plane of a row of an image of the block: kind 0 with adaptive slopes, 1 with optimised ones."""
        key = (image, row, kind)
        if key not in self.made:
            slopes = _flat(s[self.place[image], row, None] for s in self.singles.slopes)[0] if kind else None
            self.made[key] = PlaneSource(self.home[image], int(self.singles.wrong[image, row]), slopes)
        return self.made[key]

    def _alone(self, image: int, row: int) -> Proof | None:
        """The proof of one label by itself, if there is one."""
        singles, stage = self.singles, int(self.singles.stage[image, row])
        if stage < 0 or not bool(singles.block.correct[image]):
            return None
        choices = ((self.home[image], int(singles.wrong[image, row])),)
        if stage == ALONE.index("alpha"):
            return Proof(choices, (self._source(image, row, 1),), (1.0,))
        if image in self.crown and self.crown[image][row] > 0:
            return Proof(choices, (self._source(image, row, 0),), (1.0,))
        return Proof(choices)

    def _conflicts(self, hard: Sequence[int], conflicts: Iterable[Conflict]) -> Iterator[Proof]:
        """What the search proved with the planes of a group; cuts come with the joint proofs."""
        undecided, kinds = self.singles.open, len(self.singles.planes)
        rows = [(image, row) for image in hard for row in undecided[image].nonzero().flatten().tolist()]
        for conflict in conflicts:
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
