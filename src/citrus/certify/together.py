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
from citrus.certify.refine.rounds import GroupOutcome, GroupTask, refine_groups
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
    by_search: int = 0
    by_joint: int = 0
    timed_out: bool = False
    """The group's clock ran out, or its last search was cut short."""
    seconds: float = 0.0
    """What search and refinement took."""
    hard: tuple[int, ...] = ()
    """Images that no single-image proof settles: their places in the block, in the order of the search."""
    outcome: GroupOutcome | None = None


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
        tasks = {k: _search(question, singles, groups[k], delta) for k, delta in deltas.items()}
    outcomes = {k: GroupOutcome(task.first) for k, task in tasks.items()}
    if question.verifier.joint is not None and tasks:
        with question.timed("joint"):
            outcomes = dict(zip(tasks, _refine(question, singles, list(tasks.values())), strict=True))
    proofs = []
    for k, members in enumerate(groups):
        right = int(correct[owner == k].sum())
        if k not in tasks:
            proofs.append(GroupProof(right, right - lost[k]))
            continue
        result, first, clock = outcomes[k].result, tasks[k].first.survivors, tasks[k].clock
        proof = GroupProof(
            certified=right - len(members) + result.survivors,
            attacked=right - lost[k],
            by_search=first,
            by_joint=result.survivors - first,
            timed_out=clock.over or not result.exact,
            seconds=clock.spent,
            hard=tuple(members),
            outcome=outcomes[k],
        )
        if proof.certified > proof.attacked:
            names = singles.block.index[owner == k].tolist()
            raise SoundnessError(
                f"The group of images {names} is certified for {proof.certified} of them, but an attack leaves only "
                f"{proof.attacked}."
            )
        proofs.append(proof)
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


def _search(question: Question, singles: Singles, members: list[int], delta: Tensor) -> GroupTask:
    """The search over the open choices of a group, with the attack's perturbation as a first witness.

    If a refinement follows, half of the group's time is left for it.
    """
    block, clock = singles.block, Clock(question.settings.budget)
    with clock.running():
        place = singles.place
        places = [place[i] for i in members]
        rows, index = torch.tensor([places, members], device=singles.live.device)
        slopes = torch.stack([p.a[rows].flatten(2) for p in singles.planes], 2)
        offsets = torch.stack([p.b[rows] for p in singles.planes], 2)
        offsets = offsets - ROUNDING * (offsets.abs() + question.eps * slopes.abs().sum(3))
        undecided, wrong = singles.open[index], singles.wrong[index]
        search = SubsetSearch(ChoicePlanes.of(slopes, offsets, wrong, question.eps, undecided))
        violated = (margins(question.graph(block.images[index] + delta), block.labels[index]) <= 0) & undecided
        search.known.add_witness(delta, [(i, int(wrong[i, j])) for i, j in violated.nonzero().tolist()])
        share = 1.0 if question.verifier.joint is None else 0.5
        first = search.run(share * clock.left)
    return GroupTask(places, search, first, clock)


def _refine(question: Question, singles: Singles, tasks: list[GroupTask]) -> list[GroupOutcome]:
    """Joint refinement of all groups in lockstep, from the slopes that were optimised image by image."""
    assert question.verifier.joint is not None
    live, block = singles.live, singles.block
    instance = Instance(question.graph, block.images[live], block.labels[live], singles.boxes, question.eps)
    starts = {}
    for place in [place for task in tasks for place in task.places] if singles.slopes else []:
        for r in singles.open[live[place]].nonzero().flatten().tolist():
            starts[place, int(singles.wrong[live[place], r])] = tuple(s[place, r] for s in singles.slopes)
    return refine_groups(instance, tasks, question.verifier.joint, starts)
