"""From what the cascade found to proofs that can be written down: one certificate per group of a block."""

from torch import Tensor

from citrus.certify.cascade import BlockProof
from citrus.certify.joint import JointResult, Subset
from citrus.certify.proofs import GroupCertificate, PlaneSource, Proof, Round
from citrus.certify.single import STAGES, Singles
from citrus.certify.together import Together

ALPHA = STAGES.index("alpha")


def evidence(block: BlockProof, eps: float) -> list[GroupCertificate]:
    """The proofs of each group of a block; none for a block that ended in an error."""
    if block.singles is None:
        return []
    certificates, first = [], 0
    for row, where, together in zip(block.rows, block.groups, block.together, strict=True):
        members = list(range(first, first + len(where)))
        first += len(where)
        certificates.append(_group(row.group, where, members, block.singles, together, eps))
    return certificates


def _group(
    number: int, where: Tensor, members: list[int], singles: Singles, together: Together, eps: float
) -> GroupCertificate:
    home = {image: i for i, image in enumerate(members)}  # place in the block -> place in the group
    sources = _Sources(singles, home, eps)
    proofs = [sources.alone(image, r) for image in members for r in range(singles.wrong.shape[1])]
    kept = [proof for proof in proofs if proof is not None]
    parts: list[tuple[int, ...]] = [(i,) for image, i in home.items() if image not in together.hard]
    if together.outcome is not None:
        hard = [home[image] for image in together.hard]
        parts += [tuple(hard[i] for i in part) for part in together.outcome.result.parts]
        kept += sources.conflicts(together)
        kept += [sources.joint(result) for result in together.outcome.proofs]
    index = where.cpu()
    place = members[0]
    images, labels = (t[place : place + len(members)].cpu() for t in (singles.images, singles.labels))
    return GroupCertificate(number, index, images, labels, tuple(kept), together.certified, tuple(parts))


class _Sources:
    """Planes by where they came from, each made once."""

    def __init__(self, singles: Singles, home: dict[int, int], eps: float) -> None:
        self.singles, self.home = singles, home
        self.place = {image: p for p, image in enumerate(singles.live.tolist()) if image in home}
        self.block = {p: image for image, p in self.place.items()}
        self.plain = singles.planes[0].lower(eps) if singles.planes else None
        self.made: dict[tuple[int, int, int], PlaneSource] = {}

    def source(self, image: int, row: int, kind: int) -> PlaneSource:
        """The plane of a row of an image of the block: kind 0 with adaptive slopes, 1 with optimised ones."""
        key = (image, row, kind)
        if key not in self.made:
            slopes = tuple(s[self.place[image], row].cpu() for s in self.singles.slopes) if kind else None
            self.made[key] = PlaneSource(self.home[image], int(self.singles.wrong[image, row]), slopes)
        return self.made[key]

    def alone(self, image: int, row: int) -> Proof | None:
        """The proof of one label by itself, if there is one."""
        singles, stage = self.singles, int(self.singles.stage[image, row])
        if stage < 0 or not bool(singles.correct[image]):
            return None
        choices = ((self.home[image], int(singles.wrong[image, row])),)
        if stage == ALPHA:
            return Proof(choices, (self.source(image, row, 1),), (1.0,))
        if self.plain is not None and image in self.place and float(self.plain[self.place[image], row]) > 0:
            return Proof(choices, (self.source(image, row, 0),), (1.0,))
        return Proof(choices)

    def conflicts(self, together: Together) -> list[Proof]:
        """What the search proved with the planes of a group; cuts come with the joint proofs."""
        assert together.outcome is not None
        open_rows = [
            (image, row) for image in together.hard for row in self.singles.open[image].nonzero().flatten().tolist()
        ]
        kinds = len(self.singles.planes)
        proofs = []
        for conflict in together.outcome.result.conflicts:
            if not conflict.planes:
                continue
            rows = tuple(self.source(*open_rows[p // kinds], p % kinds) for p in conflict.planes)
            choices = tuple((self.home[together.hard[i]], j) for i, j in conflict.choices)
            proofs.append(Proof(choices, rows, conflict.lambdas))
        return proofs

    def joint(self, result: JointResult) -> Proof:
        weights = result.proof.tolist()
        used = [m for m, weight in enumerate(weights) if weight > 0]
        rows = self._members(result.choices, result.slopes)
        rounds = tuple(
            Round(self._members(result.choices, part.slopes), part.neurons, part.multipliers)
            for part in result.assumptions
        )
        choices = tuple((self.home[self.block[position]], label) for position, label in result.core)
        return Proof(choices, tuple(rows[m] for m in used), tuple(weights[m] for m in used), rounds)

    def _members(self, choices: Subset, slopes: tuple[Tensor, ...]) -> tuple[PlaneSource, ...]:
        return tuple(
            PlaneSource(self.home[self.block[position]], label, tuple(s[m].cpu() for s in slopes))
            for m, (position, label) in enumerate(choices)
        )
