"""Exact search and joint proofs in turn, for all groups in lockstep.

    refine_groups(instance, groups)
    certified = sum(group.result.survivors for group in groups)

A group's count rises once every one of its largest violable sets, its critical sets, is proved. Each round asks each
group for a few of them, works on all groups' sets in one batch (sets.py), and hands what is proved back as cuts. A cut
of few choices rules out many sets at once, so a group is asked for few sets at first and for more from round to round.
One critical set that cannot be proved settles its group: no other set matters, and the group leaves. So does a group
whose clock has run out.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from citrus.certify.clock import Clock, SharedTime
from citrus.certify.refine.sets import Instance, JointResult, JointSettings, Starts, Subset, prove_sets
from citrus.certify.search.memory import Contradiction
from citrus.certify.search.search import SearchResult, SubsetSearch

NOTHING = SearchResult(0, False, (), None, (), ())
"""What is known of a group when nothing can be believed."""
GROWTH, MOST = 2, 64  # a group is asked for so many times as many sets in the next round, up to so many


class OpenGroup:
    """A group that single-image proofs leave open: its search, its clock, and what is known so far.

    `places` are those of its images in the instance, in the order of the search. A search may take this `share` of the
    time that is left, so that the refinement gets its turn.
    """

    def __init__(self, places: Sequence[int], search: SubsetSearch, clock: Clock, share: float = 0.5) -> None:
        self.places, self.search, self.clock, self.share = places, search, clock, share
        self.proofs: list[JointResult] = []  # behind the cuts of `result.conflicts`; choices name places
        self.stuck = False  # a critical set could not be proved
        self.broken = ""  # what was claimed, if the attack contradicts it
        self.result = NOTHING
        with self._working():
            self.result = search.run(share * clock.left)
        self.first = self.result.survivors

    @property
    def timed_out(self) -> bool:
        """The clock ran out, or the last search was cut short."""
        return self.clock.over or not self.result.exact

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Charge what is done inside; a proof that the attack contradicts ends the work on this group alone."""
        with self.clock.running():
            try:
                yield
            except Contradiction as error:
                self.broken, self.stuck, self.result = str(error), True, NOTHING

    def ask(self, wanted: int, alone: bool) -> list[Subset]:
        """Sets whose proof may raise the count: critical ones, or single choices. None if it is final or time is up."""
        sets: list[Subset] = []
        if self.clock.over or self.broken:
            return sets
        with self._working():
            sets = self.search.critical(wanted, self.share * self.clock.left)
        if alone and sets:
            sets = [(choice,) for choice in self.search.known.names(self.search.known.alive)]
        return [tuple((self.places[image], label) for image, label in subset) for subset in sets]

    def learn(self, proof: JointResult) -> None:
        """Use a joint proof as a cut."""
        self.proofs.append(proof)
        with self._working():
            self.search.known.add_cut((self.places.index(place), label) for place, label in proof.core)

    def search_again(self) -> None:
        """The count after new cuts. A search that is cut short may find less than before: then the old count stands."""
        with self._working():
            again = self.search.run(self.share * self.clock.left)
            better = again.survivors >= self.result.survivors
            self.result = again if better else replace(self.result, exact=False)


def refine_groups(
    instance: Instance,
    groups: Sequence[OpenGroup],
    settings: JointSettings = JointSettings(),  # noqa: B008 - frozen
    starts: Starts | None = None,
) -> None:
    """Raise the count of every group as far as joint proofs of its critical sets carry, each within its own clock.

    `starts` may hold slopes by choice of the instance, for instance of the planes that the searches began with.
    """
    slopes = dict(starts or {})
    going, wanted = list(range(len(groups))), settings.sets
    for number in range(settings.rounds + settings.singles):
        alone = settings.singles and number == 0
        asked = [(g, subset) for g in going for subset in groups[g].ask(wanted, alone)]
        if not asked:
            break
        numbers, sets = zip(*asked, strict=True)
        clocks = SharedTime([group.clock for group in groups], allied=not alone)
        for g, result in zip(numbers, prove_sets(instance, sets, settings, slopes, numbers, clocks), strict=True):
            # A choice starts its next climb where the last one ended: critical sets have most choices in common.
            slopes |= {choice: tuple(s[m] for s in result.slopes) for m, choice in enumerate(result.choices)}
            if result.proved:
                groups[g].learn(result)
            elif not alone:
                groups[g].stuck = True
        for g in sorted(set(numbers)):
            groups[g].search_again()
        going = [g for g in sorted(set(numbers)) if not groups[g].stuck]
        wanted = wanted if alone else min(wanted * GROWTH, MOST)
