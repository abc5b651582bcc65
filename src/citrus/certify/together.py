"""Proofs about groups: the universal attack, the exact search, and the joint refinement, for all groups of a block.

The attack comes first: it gives the upper bound, and its perturbations save the search questions. An image counts as
fooled when its margin is not positive whatever is rounded, so that the upper bound is as true as the lower one, and an
attack that breaks a proof is a bug and no accident of rounding. Search and refinement of a group are paid from its own
clock (clock.py), whatever the groups beside it take.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from citrus.attacks import Ascent, fooled, highest_margins, pgd, universal_pgd, within
from citrus.certify.alone import Singles
from citrus.certify.clock import Clock
from citrus.certify.refine.rounds import OpenGroup, refine_groups
from citrus.certify.refine.sets import Instance
from citrus.certify.search.planes import ChoicePlanes
from citrus.certify.search.search import SubsetSearch
from citrus.certify.settings import Question

CHALLENGE = Ascent(steps=10)
POINTS = 200  # whose margins are computed at a time


@dataclass
class Together:
    """What was found out about the groups of a block, by their number in it."""

    attacked: dict[int, int]
    """How many images of the group an attack leaves."""
    deltas: dict[int, Tensor]
    """The perturbation (C, H, W) of each group that single-image proofs leave open."""
    work: dict[int, OpenGroup] = field(default_factory=dict)
    """Search and refinement of these groups."""
    broken: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    """Proofs that an attack broke: what was claimed, and the perturbation."""


def prove_together(question: Question, singles: Singles) -> Together:
    """Attack all groups, search those that single-image proofs leave open, and refine them if the verifier does so."""
    owner, hard = singles.owner, singles.correct & singles.open.any(1)
    count = int(owner.max()) + 1
    members = {k: mine for k in range(count) if (mine := ((owner == k) & hard).nonzero().flatten().tolist())}
    with question.timed("attack"):
        found = Together(
            {k: int(singles.correct[owner == k].sum()) for k in range(count)}, _attack(question, singles, members)
        )
        _challenge(question, singles, found)
        margins = _margins(question, singles, found)
    with question.timed("search"):
        found.work.update(
            {k: _search(question, singles, members[k], delta, margins) for k, delta in found.deltas.items()}
        )
    if question.verifier.joint is not None and found.work:
        with question.timed("joint"):
            _refine(question, singles, list(found.work.values()))
    for k, group in found.work.items():
        if group.broken:
            found.broken[k] = group.broken, found.deltas[k]
    return found


def _challenge(question: Question, singles: Singles, found: Together) -> None:
    """A short attack on each image that is proved alone: cheap, and a bound that is unsound is found out here."""
    proved = (singles.correct & ~singles.open.any(1)).nonzero().flatten()
    if not len(proved):
        return
    x, y = singles.images[proved], singles.labels[proved]
    generator = torch.Generator(x.device).manual_seed(question.settings.seed)
    delta = pgd(question.graph, x, y, question.eps, CHALLENGE, generator=generator)
    which = fooled(question.graph(x + delta), y).nonzero().flatten()
    if len(which):
        lost = (_highest(question, singles, proved[which], delta[which]) <= 0).any(1)
        _note_broken(singles, found, proved[which[lost]], delta[which[lost]])


def highest(question: Question, images: Tensor, labels: Tensor, delta: Tensor) -> Tensor:
    """Upper bounds of the margins of images under perturbations of their own."""
    delta, parts = within(delta.double(), question.eps), []
    for x, y, step in zip(images.split(POINTS), labels.split(POINTS), delta.split(POINTS), strict=True):
        parts.append(highest_margins(question.graph, x.double() + step, y))
    return torch.cat(parts)


def _highest(question: Question, singles: Singles, where: Tensor, delta: Tensor) -> Tensor:
    return highest(question, singles.images[where], singles.labels[where], delta)


def _note_broken(singles: Singles, found: Together, where: Tensor, delta: Tensor) -> None:
    """These images are proved alone, and yet perturbations fool them."""
    for image, step in zip(where.tolist(), delta, strict=True):
        claim = f"Image {int(singles.index[image])} of the data set is certified alone, and yet an attack fools it."
        found.broken[int(singles.owner[image])] = claim, step


def _margins(question: Question, singles: Singles, found: Together) -> Tensor:
    """Upper bounds of all margins under the group's perturbation: (n, rows), infinite where there is none. What is lost
    is taken from `attacked`."""
    margins = torch.full(singles.stage.shape, torch.inf, dtype=torch.float64, device=singles.images.device)
    if not found.deltas:
        return margins
    groups = torch.tensor(list(found.deltas), device=singles.owner.device)
    where = (torch.isin(singles.owner, groups) & singles.correct).nonzero().flatten()
    steps = torch.stack([found.deltas[k] for k in singles.owner[where].tolist()])
    margins[where] = _highest(question, singles, where, steps)
    lost = (margins <= 0).any(1)
    for k in found.deltas:
        found.attacked[k] -= int((lost & (singles.owner == k)).sum())
    proved = lost & ~singles.open.any(1)
    _note_broken(singles, found, proved.nonzero().flatten(), steps[proved[where]])
    return margins


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


def _search(question: Question, singles: Singles, members: list[int], delta: Tensor, margins: Tensor) -> OpenGroup:
    """Search over the open choices of a group, with the attack's perturbation as a first witness."""
    clock, place = Clock(question.settings.budget), singles.place
    with clock.running():
        mine = torch.isin(singles.choices[:, 0], torch.tensor(members, device=singles.choices.device))
        image, row = singles.choices[mine].unbind(1)
        choices = [
            (members.index(i), j) for i, j in zip(image.tolist(), singles.wrong[image, row].tolist(), strict=True)
        ]
        kinds = [(planes.a[mine], planes.b[mine]) for planes in singles.planes]
        slopes, offsets = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*kinds, strict=True))
        owner = torch.arange(len(choices), device=slopes.device).repeat_interleave(len(kinds))
        search = SubsetSearch(ChoicePlanes(len(members), question.eps, tuple(choices), owner, slopes, offsets))
        fallen = (margins[image, row] <= 0).tolist()
        search.known.add_witness(delta, [choice for choice, gone in zip(choices, fallen, strict=True) if gone])
    share = 1.0 if question.verifier.joint is None else 0.5
    return OpenGroup([place[i] for i in members], search, clock, share)


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
