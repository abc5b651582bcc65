"""Proofs about groups: the universal attack, the exact search, and the joint refinement, for all groups of a block.

The attack comes first: it gives the upper bound, and its perturbations save the search questions. Search and refinement
of a group are paid from its own clock (clock.py), whatever the groups beside it take.
"""

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


def prove_together(question: Question, singles: Singles) -> tuple[list[int], dict[int, OpenGroup]]:
    """How many images of each group the attack leaves, and by number the groups that single-image proofs leave open:
    searched, and refined if the verifier does so."""
    owner, hard = singles.owner, singles.correct & singles.open.any(1)
    count = int(owner.max()) + 1
    members = {k: found for k in range(count) if (found := ((owner == k) & hard).nonzero().flatten().tolist())}
    attacked = [int(singles.correct[owner == k].sum()) for k in range(count)]
    with question.timed("attack"):
        _challenge(question, singles)
        deltas = _attack(question, singles, members)
        for k, delta in deltas.items():
            attacked[k] -= _lost(question, singles, owner == k, delta)
    with question.timed("search"):
        work = {k: _search(question, singles, members[k], delta) for k, delta in deltas.items()}
    if question.verifier.joint is not None and work:
        with question.timed("joint"):
            _refine(question, singles, list(work.values()))
    return attacked, work


def _challenge(question: Question, singles: Singles) -> None:
    """A short attack on each image that is proved alone: cheap, and a bound that is unsound stops the run here."""
    proved = (singles.correct & ~singles.open.any(1)).nonzero().flatten()
    if not len(proved):
        return
    x, y = singles.images[proved], singles.labels[proved]
    generator = torch.Generator(x.device).manual_seed(question.settings.seed)
    delta = pgd(question.graph, x, y, question.eps, CHALLENGE, generator=generator)
    _no_proof_is_broken(singles, proved, fooled(question.graph(x + delta), y))


def _no_proof_is_broken(singles: Singles, where: Tensor, wrong: Tensor) -> None:
    """`wrong` tells which of the images `where` an attack fools."""
    broken = where[wrong & ~singles.open[where].any(1)]
    if len(broken):
        name = int(singles.index[broken[0]])
        raise SoundnessError(f"Image {name} of the data set is certified alone, and yet an attack fools it.")


def _attack(question: Question, singles: Singles, members: dict[int, list[int]]) -> dict[int, Tensor]:
    """One perturbation for each group, found on these members."""
    if not members:
        return {}
    settings, device = question.settings, singles.images.device
    index = torch.tensor([i for mine in members.values() for i in mine], device=device)
    number = torch.tensor([n for n, mine in enumerate(members.values()) for _ in mine], device=device)
    generator = torch.Generator(device).manual_seed(settings.seed)
    x, y = singles.images[index], singles.labels[index]
    found = universal_pgd(question.graph, x, y, number, question.eps, settings.attack, generator)
    return dict(zip(members, found.delta, strict=True))


def _lost(question: Question, singles: Singles, mine: Tensor, delta: Tensor) -> int:
    """How many correct images of a group a perturbation fools. It must not fool one that is proved."""
    index = (mine & singles.correct).nonzero().flatten()
    wrong = fooled(question.graph(singles.images[index] + delta), singles.labels[index])
    _no_proof_is_broken(singles, index, wrong)
    return int(wrong.sum())


def _search(question: Question, singles: Singles, members: list[int], delta: Tensor) -> OpenGroup:
    """Search over the open choices of a group, with the attack's perturbation as a first witness."""
    clock, place = Clock(question.settings.budget), singles.place
    with clock.running():
        places = [place[i] for i in members]
        slopes = torch.stack([planes.a[places].flatten(2) for planes in singles.planes], 2)
        offsets = torch.stack([planes.b[places] for planes in singles.planes], 2)
        offsets = offsets - ROUNDING * (offsets.abs() + question.eps * slopes.abs().sum(3))
        undecided, wrong = singles.open[members], singles.wrong[members]
        search = SubsetSearch(ChoicePlanes.of(slopes, offsets, wrong, question.eps, undecided))
        scores = question.graph(singles.images[members] + delta)
        violated = (margins(scores, singles.labels[members]) <= 0) & undecided
        search.known.add_witness(delta, [(i, int(wrong[i, j])) for i, j in violated.nonzero().tolist()])
    return OpenGroup(places, search, clock, share=1.0 if question.verifier.joint is None else 0.5)


def _refine(question: Question, singles: Singles, groups: list[OpenGroup]) -> None:
    """Joint refinement of all groups in lockstep, from the slopes that were optimised image by image."""
    assert question.verifier.joint is not None
    live = singles.live
    instance = Instance(question.graph, singles.images[live], singles.labels[live], singles.boxes, question.eps)
    starts = {}
    for place in [place for group in groups for place in group.places] if singles.slopes else []:
        for r in singles.open[live[place]].nonzero().flatten().tolist():
            starts[place, int(singles.wrong[live[place], r])] = tuple(s[place, r] for s in singles.slopes)
    refine_groups(instance, groups, question.verifier.joint, starts)
