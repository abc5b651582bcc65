"""From what the cascade found to certificates: the only place where the prover meets the checker's classes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from citrus.certify.alone import Singles
from citrus.certify.cascade import BlockProof
from citrus.certify.refine.rounds import OpenGroup
from citrus.certify.refine.sets import JointResult, Subset
from citrus.certify.result import ALONE, GroupResult
from citrus.certify.settings import Question
from citrus.certify.whole.choices import Key
from citrus.certify.whole.leaves import Leaves
from citrus.certify.whole.master import MasterProof
from citrus.checker.certificate import certificate_path as certificate_path
from citrus.checker.certificate import fingerprint as fingerprint
from citrus.checker.certificate import write_certificates
from citrus.checker.dual import Dual, Leaf
from citrus.checker.planes import PlaneSource, Side
from citrus.checker.proofs import Certificate, Proof, Round


class Exporter:
    """Writes certificates of the groups of a cascade, as blocks of them are proved."""

    def __init__(self, folder: Path, question: Question, network_path: str | None = None) -> None:
        self.folder, self.question, self.network_path = folder, question, network_path
        self.large = defaultdict[int, GroupProofs](lambda: GroupProofs(question))
        """Large groups so far, which come in blocks that are forgotten."""

    def watch(self, number: int, singles: Singles, work: Mapping[int, OpenGroup]) -> None:
        """Hear of a block of a large group."""
        for owner in range(int(singles.owner.max()) + 1):
            self.large[number].add(singles, owner, work.get(owner))

    def write(self, block: BlockProof, skip: frozenset[int] = frozenset()) -> dict[int, int]:
        """Write a certificate for each group of a block, without those in `skip`; how many images each file proves, by
        the group's number."""
        certificates = [given for given in self.certificates(block) if given.number not in skip]
        written = write_certificates(self.folder, self.question.graph, certificates, self.network_path)
        return {given.number: file.survivors for given, file in zip(certificates, written, strict=True)}

    def certificates(self, block: BlockProof) -> list[Certificate]:
        """The proofs of each group of a block; none for those where memory ran out."""
        found = []
        for k, row in enumerate(block.rows):
            proofs = self.large.pop(row.group, None) or GroupProofs(self.question)
            if block.singles is not None:
                proofs.add(block.singles, k, block.work.get(k))
            if block.singles is not None or row.group in block.large:
                large = block.large.get(row.group)
                found.append(proofs.certificate(row, large.masters if large else ()))
        return found


class GroupProofs:
    """The proofs of one group, added up part by part. A certificate names images by their place in the group, and each
    plane is made once."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.index: list[Tensor] = []
        self.images: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.proofs: list[Proof] = []
        self.parts: list[tuple[int, ...]] = []
        """Images that were counted together; those that duals count are taken out in the end."""
        self.count = 0

    def add(self, singles: Singles, owner: int, work: OpenGroup | None) -> None:
        """What was proved about the images of a block with this owner."""
        mine = singles.owner == owner
        members = mine.nonzero().flatten().tolist()
        part = _Part(singles, {image: self.count + i for i, image in enumerate(members)})
        hard: list[int] = []
        self.proofs += [proof for image in members for proof in part.alone(image)]
        if work is not None:
            hard = [int(singles.live[place]) for place in work.places]
            self.parts += [tuple(part.home[hard[i]] for i in some) for some in work.result.parts]
            self.proofs += [*part.conflicts(hard, work), *map(part.joint, work.proofs)]
        self.parts += [(part.home[image],) for image in members if image not in hard]
        for kept, values in ((self.index, "index"), (self.images, "images"), (self.labels, "labels")):
            kept.append(getattr(singles, values)[mine].cpu())
        self.count += len(members)

    def certificate(self, row: GroupResult, masters: Sequence[MasterProof]) -> Certificate:
        question, index = self.question, torch.cat(self.index)
        home = {place: k for k, place in enumerate(index.tolist())}
        duals = tuple(_dual(master, home) for master in masters)
        counted = {image for dual in duals for image in dual.images}
        return Certificate(
            number=row.group,
            index=index,
            images=torch.cat(self.images),
            labels=torch.cat(self.labels),
            eps=question.eps,
            intermediate=question.verifier.linear.intermediate,
            arithmetic=question.settings.arithmetic,
            proofs=tuple(self.proofs),
            survivors=row.certified,
            parts=tuple(left for part in self.parts if (left := tuple(i for i in part if i not in counted))),
            duals=duals,
        )


def _dual(master: MasterProof, home: dict[int, int]) -> Dual:
    """A master problem with its multipliers as a certificate names it; `home` is the place of each image in the group
    by that in the data set."""
    choices, front, problem = master.choices, master.front, master.problem
    keys = [(home[image], label) for image, label in choices.keys]
    made = _sources(front.pool.made, keys)
    pool = zip(front.pool.choice.tolist(), front.pool.row.tolist(), strict=True)
    leaves = zip(front.leaves.choice.tolist(), _sides(front.leaves), strict=True)
    m = master.multipliers.to("cpu")
    used, cut = m.gamma != 0, m.theta > 0
    return Dual(
        images=tuple(dict.fromkeys(image for image, _ in keys)),
        leaves=tuple(Leaf(keys[choice][0], keys[choice][1], own) for choice, own in leaves),
        closed=tuple(_sources(front.closed, keys)),
        planes=tuple(made[row] if row >= 0 else PlaneSource(*keys[choice]) for choice, row in pool),
        uses=problem.uses.cpu(),
        weights=m.weights,
        alpha=m.alpha,
        beta=m.beta,
        pairs=problem.pairs.cpu()[used],
        gamma=m.gamma[used],
        cuts=tuple(one for one, has in zip(problem.cuts, cut.tolist(), strict=True) if has),
        theta=m.theta[cut],
    )


def _sources(leaves: Leaves, keys: Sequence[Key]) -> list[PlaneSource]:
    """The planes that leaves make of their own."""
    of = zip(leaves.choice.tolist(), leaves.slopes.cpu(), _sides(leaves), strict=True)
    return [PlaneSource(keys[choice][0], keys[choice][1], slopes, sides) for choice, slopes, sides in of]


def _sides(leaves: Leaves) -> list[tuple[Side, ...]]:
    return [tuple((n, on) for n, on in some if n >= 0) for some in leaves.sides.tolist()]


class _Part:
    """The images of a block that belong to one group; `home` is the place of each in the group."""

    def __init__(self, singles: Singles, home: dict[int, int]) -> None:
        self.singles, self.home, self.place = singles, home, singles.place
        self.made: dict[tuple[int, int, int], PlaneSource] = {}

    def _source(self, image: int, row: int, kind: int) -> PlaneSource:
        """The plane of a row of an image of the block: kind 0 with adaptive slopes, 1 with optimised ones."""
        key = (image, row, kind)
        if key not in self.made:
            slopes = _flat(s[self.place[image], row, None] for s in self.singles.slopes)[0] if kind else None
            self.made[key] = PlaneSource(self.home[image], int(self.singles.wrong[image, row]), slopes)
        return self.made[key]

    def alone(self, image: int) -> Iterator[Proof]:
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

    def conflicts(self, hard: list[int], work: OpenGroup) -> Iterator[Proof]:
        """What the search proved with the planes of a group; cuts come with the joint proofs."""
        undecided, kinds = self.singles.open, len(self.singles.planes)
        rows = [(image, row) for image in hard for row in undecided[image].nonzero().flatten().tolist()]
        for conflict in work.result.conflicts:
            if conflict.planes:
                planes = tuple(self._source(*rows[p // kinds], p % kinds) for p in conflict.planes)
                choices = tuple((self.home[hard[i]], j) for i, j in conflict.choices)
                yield Proof(choices, planes, conflict.lambdas)

    def joint(self, result: JointResult) -> Proof:
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
