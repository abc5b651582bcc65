"""Exact search and joint proofs in turn, for all groups in lockstep.

    outcomes = refine_groups(instance, tasks)
    certified = sum(outcome.result.survivors for outcome in outcomes)

A group's count rises once every one of its largest violable sets, its critical sets, is proved. Each round asks each
group for a few of them, works on all groups' sets in one batch (sets.py), and hands what is proved back as cuts. A cut
of few choices rules out many sets at once, so a group is asked for few sets at first and for more from round to round.
One critical set that cannot be proved settles its group: no other set matters, and the group leaves. So does a group
whose clock has run out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from citrus.certify.clock import Clock, SharedTime
from citrus.certify.refine.ascent import JointSettings
from citrus.certify.refine.sets import Instance, JointResult, Starts, Subset, prove_sets
from citrus.certify.search.search import SearchResult, SubsetSearch


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
    search_seconds: float = 10.0
    """Most that a search between two rounds may take."""


STRONGEST = RoundSettings(JointSettings(iterations=60, assume=8), singles=True)
"""With proofs by contradiction, each choice alone first: in our trials more and faster than anything without them."""


@dataclass(frozen=True)
class GroupTask:
    """A group whose search has run, and what it may still take."""

    places: Sequence[int]
    """Of its images in the instance, in the order of the search."""
    search: SubsetSearch
    first: SearchResult
    clock: Clock = field(default_factory=Clock)

    def outward(self, subset: Subset) -> Subset:
        """Choices of the search as choices of the instance."""
        return tuple((self.places[image], label) for image, label in subset)

    def inward(self, subset: Subset) -> Subset:
        """Choices of the instance as choices of the search."""
        return tuple((self.places.index(place), label) for place, label in subset)


@dataclass
class GroupOutcome:
    """What is known about a group at the end."""

    result: SearchResult
    """The last search; `exact` is False if it was cut short."""
    proofs: list[JointResult] = field(default_factory=list)
    """The joint proofs behind the cuts of `result.conflicts`. Their choices name places in the instance."""
    stuck: bool = False
    """A critical set could not be proved."""


def refine_groups(
    instance: Instance,
    tasks: Sequence[GroupTask],
    settings: RoundSettings = RoundSettings(),  # noqa: B008 - frozen
    starts: Starts | None = None,
) -> list[GroupOutcome]:
    """Raise the count of every group as far as joint proofs of its critical sets carry, each within its own clock.

    `starts` may hold slopes by choice of the instance, for instance of the planes that the searches began with.
    """
    outcomes = [GroupOutcome(task.first) for task in tasks]
    slopes = dict(starts or {})
    going, wanted = list(range(len(tasks))), settings.sets
    for number in range(settings.rounds + settings.singles):
        alone = settings.singles and number == 0
        asked = {g: _ask(tasks[g], wanted, alone, settings) for g in going}
        going = [g for g in going if asked[g]]
        if not going:
            break
        groups, sets = zip(*((g, tasks[g].outward(subset)) for g in going for subset in asked[g]), strict=True)
        clocks = SharedTime([task.clock for task in tasks], allied=not alone)
        for g, result in zip(groups, prove_sets(instance, sets, settings.joint, slopes, groups, clocks), strict=True):
            # A choice starts its next climb where the last one ended: critical sets have most choices in common.
            slopes |= {choice: tuple(s[m] for s in result.slopes) for m, choice in enumerate(result.choices)}
            if result.proved:
                outcomes[g].proofs.append(result)
                tasks[g].search.known.add_cut(tasks[g].inward(result.core))
            elif not alone:
                outcomes[g].stuck = True
        for g in going:
            outcomes[g].result = _searched_again(tasks[g], outcomes[g].result, settings)
        going = [g for g in going if not outcomes[g].stuck]
        wanted = wanted if alone else min(wanted * settings.growth, settings.most)
    return outcomes


def _ask(task: GroupTask, wanted: int, alone: bool, settings: RoundSettings) -> list[Subset]:
    """Sets whose proof may raise the group's count; none if it cannot be raised or the clock has run out."""
    if task.clock.over:
        return []
    with task.clock.running():
        critical = task.search.critical(wanted, min(settings.search_seconds, task.clock.left))
    known = task.search.known
    return [(choice,) for choice in known.names(known.alive)] if alone and critical else critical


def _searched_again(task: GroupTask, before: SearchResult, settings: RoundSettings) -> SearchResult:
    """The count after new cuts. A search that is cut short may find less than before: then the old count stands."""
    with task.clock.running():
        again = task.search.run(min(settings.search_seconds, task.clock.left))
    return again if again.survivors >= before.survivors else replace(before, exact=False)
