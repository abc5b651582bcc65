"""Exact search and joint refinement in turn, for all groups in lockstep.

    outcomes = refine_groups(instance, groups, searches)
    certified = sum(outcome.result.survivors for outcome in outcomes)

A group's count rises once every one of its largest violable subsets, its critical sets, is proved. Each round asks each
group for a few of them, climbs all groups' sets in one batch (joint.py), and hands what is proved back as cuts. A cut
of few choices rules out many sets at once, so a group is asked for few sets at first and for more from round to round.
One critical set that cannot be proved settles its group: no other set matters, and the group leaves.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from citrus.certify.joint import Instance, JointResult, JointSettings, Starts, Subset, refine_subsets
from citrus.certify.search import Budget, SearchResult, SubsetSearch
from citrus.errors import CitrusError


@dataclass(frozen=True)
class RoundSettings:
    """How many sets to ask for, and when to stop."""

    joint: JointSettings = field(default_factory=JointSettings)
    sets: int = 4
    """Critical sets that a group is asked for in the first round."""
    growth: int = 2
    """A group is asked for this many times as many in the next round."""
    most: int = 64
    """But for no more than this."""
    singles: bool = False
    """Before the first round, try to prove each open choice alone: one choice less rules out the most sets."""
    rounds: int = 200
    seconds: float = float("inf")
    """For all groups together; a round that has begun is stopped, too."""
    search: Budget = field(default_factory=lambda: Budget(seconds=10.0))
    """Of each search between two rounds."""

    def __post_init__(self) -> None:
        if self.sets < 1 or self.growth < 1 or self.most < self.sets or self.rounds < 0:
            raise CitrusError(f"Rounds need 1 <= sets <= most, growth >= 1 and rounds >= 0, got {self}.")


STRONGEST = RoundSettings(JointSettings(iterations=60, assume=8), singles=True)
"""With proofs by contradiction, each choice alone first: in our trials more and faster than anything without them."""


@dataclass
class Outcome:
    """What is known about a group at the end. Choices of joint results name positions in the instance."""

    result: SearchResult
    proofs: list[JointResult] = field(default_factory=list)
    """The joint proofs behind the cuts of `result.conflicts`."""
    stuck: list[JointResult] = field(default_factory=list)
    """Critical sets that could not be proved: here a branch and bound goes on."""


def refine_groups(
    instance: Instance,
    groups: Sequence[Sequence[int]],
    searches: Sequence[SubsetSearch],
    settings: RoundSettings = RoundSettings(),  # noqa: B008 - frozen
    starts: Starts | None = None,
) -> list[Outcome]:
    """Raise the count of every group as far as joint proofs of its critical sets carry.

    `groups[g][i]` is the position in the instance of image i of `searches[g]`. `starts` may hold slopes by choice, with
    positions in the instance, for instance of the optimised slopes that the searches' planes were made with.
    """
    if len(groups) != len(searches):
        raise CitrusError(f"There are {len(groups)} groups, but {len(searches)} searches.")
    end = time.perf_counter() + settings.seconds

    def budget() -> Budget:
        return replace(settings.search, seconds=max(0.0, min(settings.search.seconds, end - time.perf_counter())))

    outcomes = [Outcome(search.run(budget())) for search in searches]
    active, limit = list(range(len(groups))), settings.sets
    slopes = dict(starts or {})
    for number in range(settings.rounds + settings.singles):
        left = end - time.perf_counter()
        asked = {g: searches[g].critical(limit, budget()) for g in active} if left > 0 else {}
        active = [g for g in active if asked.get(g)]
        alone = settings.singles and number == 0
        if alone:
            asked = {g: [(choice,) for choice in _open(searches[g])] for g in active}
        sets = [(g, _abroad(subset, groups[g])) for g in active for subset in asked[g]]
        if not sets:
            break
        joint = replace(settings.joint, seconds=min(settings.joint.seconds, left))
        teams = None if alone else [g for g, _ in sets]
        found = refine_subsets(instance, [subset for _, subset in sets], joint, slopes, teams)
        for (g, _), result in zip(sets, found, strict=True):
            slopes.update(_slopes(result))
            if result.proved:
                outcomes[g].proofs.append(result)
                searches[g].add_cut(_at_home(result.core, groups[g]))
            elif not alone:
                outcomes[g].stuck.append(result)
        for g in active:
            again = searches[g].run(budget())
            if again.survivors >= outcomes[g].result.survivors:  # fewer only where time ran out
                outcomes[g].result = again
        active = [g for g in active if not outcomes[g].stuck]
        limit = limit if alone else min(limit * settings.growth, settings.most)
    return outcomes


def _open(search: SubsetSearch) -> Subset:
    """The choices that are not proved alone."""
    return search.known.names(search.known.alive)


def _abroad(subset: Subset, group: Sequence[int]) -> Subset:
    return tuple((group[image], label) for image, label in subset)


def _at_home(subset: Subset, group: Sequence[int]) -> Subset:
    place = {position: image for image, position in enumerate(group)}
    return tuple((place[position], label) for position, label in subset)


def _slopes(result: JointResult) -> Starts:
    """A choice starts its next climb where the last one ended: critical sets of a group have most choices in common."""
    return {choice: tuple(s[m] for s in result.slopes) for m, choice in enumerate(result.choices)}
