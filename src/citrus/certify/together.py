"""Proofs about groups: the universal attack, the exact search, and the joint refinement, for all groups of a block."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.attacks import Ascent, fooled, pgd, universal_pgd
from citrus.bounds.margins import margins
from citrus.certify.joint import Instance
from citrus.certify.planes import ChoicePlanes
from citrus.certify.rounds import Outcome, refine_groups
from citrus.certify.search import Budget, SearchResult, SubsetSearch
from citrus.certify.single import ROUNDING, Singles, timed
from citrus.certify.verifiers import Verifier
from citrus.errors import SoundnessError
from citrus.networks import Graph


@dataclass(frozen=True)
class Together:
    """What is known about one group: at least `certified`, at most `attacked` of its images survive."""

    certified: int
    attacked: int
    by_search: int
    by_joint: int
    timed_out: bool
    hard: tuple[int, ...] = ()
    """Images that no single-image proof settles: their places in the block, in the order of the search."""
    outcome: Outcome | None = None
    delta: Tensor | None = None
    """The strongest perturbation that the attack found."""


def prove_together(
    graph: Graph,
    singles: Singles,
    owner: Tensor,
    eps: float,
    verifier: Verifier,
    attack: Ascent,
    budget: float,
    seed: int,
    seconds: dict[str, float],
) -> list[Together]:
    """Both bounds for each group; `owner` (n,) is the group of each image, `budget` the seconds for all groups."""
    hard = singles.correct & singles.open.any(1)
    groups = [((owner == k) & hard).nonzero().flatten().tolist() for k in range(int(owner.max()) + 1)]
    with timed(seconds, "attack"):
        _challenge(graph, singles, eps, seed)
        deltas = _attack(graph, singles, groups, eps, attack, seed)
        lost = [_lost(graph, singles, owner == k, delta) for k, delta in enumerate(deltas)]
    end = time.perf_counter() + budget
    busy = [k for k, members in enumerate(groups) if members]
    searches = {k: _search(graph, singles, groups[k], deltas[k], eps) for k in busy}
    with timed(seconds, "search"):
        first = {k: searches[k].run(Budget(seconds=(end - time.perf_counter()) / 2)) for k in busy}
    outcomes = {k: Outcome(first[k]) for k in busy}
    if verifier.joint is not None and busy:
        with timed(seconds, "joint"):
            outcomes = _refine(graph, singles, groups, searches, eps, verifier, end)
    late = time.perf_counter() >= end
    results = []
    for k, members in enumerate(groups):
        correct = int(singles.correct[owner == k].sum())
        attacked = correct - lost[k]
        if k not in searches:
            results.append(Together(correct, attacked, 0, 0, False))
            continue
        result: SearchResult = outcomes[k].result
        certified = correct - len(members) + result.survivors
        if certified > attacked:
            raise SoundnessError(f"A group is certified for {certified} images, but an attack leaves only {attacked}.")
        by_joint = result.survivors - first[k].survivors
        late_or_cut = late or not result.exact
        results.append(
            Together(
                *(certified, attacked, first[k].survivors, by_joint, late_or_cut),
                tuple(members),
                outcomes[k],
                deltas[k],
            )
        )
    return results


CHALLENGE = Ascent(steps=10)


def _challenge(graph: Graph, singles: Singles, eps: float, seed: int) -> None:
    """A short attack on each image that is proved alone: cheap, and a bound that is unsound stops the run here."""
    proved = (singles.correct & ~singles.open.any(1)).nonzero().flatten()
    if not len(proved):
        return
    x, y = singles.images[proved], singles.labels[proved]
    generator = torch.Generator(x.device).manual_seed(seed)
    wrong = fooled(graph(x + pgd(graph, x, y, eps, CHALLENGE, generator=generator)), y)
    if bool(wrong.any()):
        raise SoundnessError(f"Image {int(proved[wrong][0])} of a block is certified alone, and yet PGD fools it.")


def _attack(
    graph: Graph, singles: Singles, groups: list[list[int]], eps: float, attack: Ascent, seed: int
) -> list[Tensor | None]:
    """One perturbation for each group that has open images, found on those; None for the others."""
    busy = [k for k, members in enumerate(groups) if members]
    if not busy:
        return [None] * len(groups)
    index = torch.tensor([i for k in busy for i in groups[k]], device=singles.images.device)
    number = torch.tensor([n for n, k in enumerate(busy) for _ in groups[k]], device=index.device)
    generator = torch.Generator(index.device).manual_seed(seed)
    found = universal_pgd(graph, singles.images[index], singles.labels[index], number, eps, attack, generator)
    deltas: list[Tensor | None] = [None] * len(groups)
    for n, k in enumerate(busy):
        deltas[k] = found.delta[n]
    return deltas


def _lost(graph: Graph, singles: Singles, mine: Tensor, delta: Tensor | None) -> int:
    """How many correct images of a group a perturbation fools. It must not fool one that is proved."""
    if delta is None:
        return 0
    index = (mine & singles.correct).nonzero().flatten()
    wrong = fooled(graph(singles.images[index] + delta), singles.labels[index])
    broken = wrong & ~singles.open[index].any(1)
    if bool(broken.any()):
        raise SoundnessError(
            f"Image {int(index[broken][0])} of a block is certified alone, and yet an attack fools it."
        )
    return int(wrong.sum())


def _search(graph: Graph, singles: Singles, members: list[int], delta: Tensor | None, eps: float) -> SubsetSearch:
    """The search over the open choices of a group, with the attack's perturbation as a first witness."""
    place = {int(image): p for p, image in enumerate(singles.live.tolist())}
    rows = torch.tensor([place[i] for i in members], device=singles.live.device)
    index = torch.tensor(members, device=singles.live.device)
    slopes = torch.stack([p.a[rows].flatten(2) for p in singles.planes], 2)
    offsets = torch.stack([p.b[rows] for p in singles.planes], 2)
    offsets = offsets - ROUNDING * (offsets.abs() + eps * slopes.abs().sum(3))
    undecided, wrong = singles.open[index], singles.wrong[index]
    search = SubsetSearch(ChoicePlanes.of(slopes, offsets, wrong, eps, undecided))
    if delta is not None:
        values = margins(graph(singles.images[index] + delta), singles.labels[index])
        violated = (values <= 0) & undecided
        search.add_witness(delta, [(i, int(wrong[i, j])) for i, j in violated.nonzero().tolist()])
    return search


def _refine(
    graph: Graph,
    singles: Singles,
    groups: Sequence[list[int]],
    searches: dict[int, SubsetSearch],
    eps: float,
    verifier: Verifier,
    end: float,
) -> dict[int, Outcome]:
    """Joint refinement of all groups in lockstep, from the slopes that were optimised image by image."""
    assert verifier.joint is not None
    live = singles.live
    place = {int(image): p for p, image in enumerate(live.tolist())}
    instance = Instance(graph, singles.images[live], singles.labels[live], singles.boxes, eps)
    busy = sorted(searches)
    positions = [[place[i] for i in groups[k]] for k in busy]
    starts = {}
    for members in positions if singles.slopes else []:
        for p in members:
            for r in singles.open[live[p]].nonzero().flatten().tolist():
                starts[p, int(singles.wrong[live[p], r])] = tuple(s[p, r] for s in singles.slopes)
    settings = replace(verifier.joint, seconds=max(0.0, end - time.perf_counter()))
    found = refine_groups(instance, positions, [searches[k] for k in busy], settings, starts)
    return dict(zip(busy, found, strict=True))
