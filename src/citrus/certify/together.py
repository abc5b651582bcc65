"""Proofs about groups: the universal attack, the exact search, and the joint refinement, for all groups of a block.

The attack comes first: it gives the upper bound, and its perturbations save the search questions. Search and refinement
of a group are paid from its own clock (clock.py), whatever the groups beside it take.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.attacks import Ascent, fooled, pgd, universal_pgd
from citrus.bounds.margins import margins
from citrus.certify.alone import ROUNDING, Singles
from citrus.certify.clock import Clock
from citrus.certify.refine.rounds import OpenGroup, refine_groups
from citrus.certify.refine.sets import Instance
from citrus.certify.search.planes import ChoicePlanes
from citrus.certify.search.search import SubsetSearch
from citrus.certify.settings import Question
from citrus.errors import SoundnessError

CHALLENGE = Ascent(steps=10)


@dataclass(frozen=True)
class GroupProof:
    """What is known about one group: at least `certified`, at most `attacked` of its images survive."""

    certified: int
    attacked: int
    hard: tuple[int, ...] = ()
    """Images that no single-image proof settles: their places in the block, in the order of the search."""
    work: OpenGroup | None = None  # search and refinement of the hard images

    @property
    def stages(self) -> dict[str, int]:
        """Images by the stage that proved them in their group."""
        return {"search": self.work.first, "joint": self.work.result.survivors - self.work.first} if self.work else {}

    @property
    def timed_out(self) -> bool:
        """The group's clock ran out, or its last search was cut short."""
        return self.work is not None and (self.work.clock.over or not self.work.result.exact)

    @property
    def seconds(self) -> float:
        """What search and refinement took."""
        return self.work.clock.spent if self.work else 0.0


def prove_together(question: Question, singles: Singles) -> list[GroupProof]:
    """Both bounds for each group of a block."""
    owner, correct = singles.block.owner, singles.block.correct
    hard = correct & singles.open.any(1)
    groups = [((owner == k) & hard).nonzero().flatten().tolist() for k in range(int(owner.max()) + 1)]
    with question.timed("attack"):
        _challenge(question, singles)
        deltas = _attack(question, singles, groups)
        lost = [_lost(question, singles, owner == k, deltas.get(k)) for k in range(len(groups))]
    with question.timed("search"):
        work = {k: _search(question, singles, groups[k], delta) for k, delta in deltas.items()}
    if question.verifier.joint is not None and work:
        with question.timed("joint"):
            _refine(question, singles, list(work.values()))
    proofs = []
    for k, members in enumerate(groups):
        right = int(correct[owner == k].sum())
        proved = right - len(members) + (work[k].result.survivors if k in work else 0)
        proofs.append(GroupProof(proved, right - lost[k], tuple(members), work.get(k)))
        if proved > right - lost[k]:
            names = singles.block.index[owner == k].tolist()
            text = f"is certified for {proved} of them, but an attack leaves only {right - lost[k]}"
            raise SoundnessError(f"The group of images {names} {text}.")
    return proofs


def _challenge(question: Question, singles: Singles) -> None:
    """A short attack on each image that is proved alone: cheap, and a bound that is unsound stops the run here."""
    proved = (singles.block.correct & ~singles.open.any(1)).nonzero().flatten()
    if not len(proved):
        return
    x, y = singles.block.images[proved], singles.block.labels[proved]
    generator = torch.Generator(x.device).manual_seed(question.settings.seed)
    delta = pgd(question.graph, x, y, question.eps, CHALLENGE, generator=generator)
    _no_proof_is_broken(singles, proved, fooled(question.graph(x + delta), y))


def _no_proof_is_broken(singles: Singles, where: Tensor, wrong: Tensor) -> None:
    """`wrong` tells which of the images `where` an attack fools."""
    broken = where[wrong & ~singles.open[where].any(1)]
    if len(broken):
        name = int(singles.block.index[broken[0]])
        raise SoundnessError(f"Image {name} of the data set is certified alone, and yet an attack fools it.")


def _attack(question: Question, singles: Singles, groups: list[list[int]]) -> dict[int, Tensor]:
    """One perturbation for each group that has open images, found on those."""
    busy = [k for k, members in enumerate(groups) if members]
    if not busy:
        return {}
    block, settings = singles.block, question.settings
    index = torch.tensor([i for k in busy for i in groups[k]], device=block.images.device)
    number = torch.tensor([n for n, k in enumerate(busy) for _ in groups[k]], device=index.device)
    generator = torch.Generator(index.device).manual_seed(settings.seed)
    found = universal_pgd(
        question.graph, block.images[index], block.labels[index], number, question.eps, settings.attack, generator
    )
    return dict(zip(busy, found.delta, strict=True))


def _lost(question: Question, singles: Singles, mine: Tensor, delta: Tensor | None) -> int:
    """How many correct images of a group a perturbation fools. It must not fool one that is proved."""
    if delta is None:
        return 0
    index = (mine & singles.block.correct).nonzero().flatten()
    wrong = fooled(question.graph(singles.block.images[index] + delta), singles.block.labels[index])
    _no_proof_is_broken(singles, index, wrong)
    return int(wrong.sum())


def _search(question: Question, singles: Singles, members: list[int], delta: Tensor) -> OpenGroup:
    """Search over the open choices of a group, with the attack's perturbation as a first witness."""
    block, clock, place = singles.block, Clock(question.settings.budget), singles.place
    with clock.running():
        places = [place[i] for i in members]
        rows, index = torch.tensor([places, members], device=singles.live.device)
        slopes = torch.stack([p.a[rows].flatten(2) for p in singles.planes], 2)
        offsets = torch.stack([p.b[rows] for p in singles.planes], 2)
        offsets = offsets - ROUNDING * (offsets.abs() + question.eps * slopes.abs().sum(3))
        undecided, wrong = singles.open[index], singles.wrong[index]
        search = SubsetSearch(ChoicePlanes.of(slopes, offsets, wrong, question.eps, undecided))
        violated = (margins(question.graph(block.images[index] + delta), block.labels[index]) <= 0) & undecided
        search.known.add_witness(delta, [(i, int(wrong[i, j])) for i, j in violated.nonzero().tolist()])
    return OpenGroup(places, search, clock, share=1.0 if question.verifier.joint is None else 0.5)


def _refine(question: Question, singles: Singles, groups: list[OpenGroup]) -> None:
    """Joint refinement of all groups in lockstep, from the slopes that were optimised image by image."""
    assert question.verifier.joint is not None
    live, block = singles.live, singles.block
    instance = Instance(question.graph, block.images[live], block.labels[live], singles.boxes, question.eps)
    starts = {}
    for place in [place for group in groups for place in group.places] if singles.slopes else []:
        for r in singles.open[live[place]].nonzero().flatten().tolist():
            starts[place, int(singles.wrong[live[place], r])] = tuple(s[place, r] for s in singles.slopes)
    refine_groups(instance, groups, question.verifier.joint, starts)
