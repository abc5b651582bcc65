"""Exact search for the most images of a group that one perturbation can violate on the planes.

    result = SubsetSearch(planes).run(seconds=10)

A choice is (image, wrong label); a set of choices, one label per image, is violable when one delta brings all its
planes to <= 0 (planes.py). Violable sets are closed under subsets, so the largest one is a kind of largest clique, and
the images outside it are the certified count. Three things keep the search small:

* Memory. Every proved set is a conflict, shrunk to the choices its proof needs; every delta met is kept with all the
  choices it violates (memory.py). Most nodes are decided by them before any dual is computed.
* Suffixes (Russian doll search). Images are added one by one to the front of an order; best[k] is the answer for the
  images from k on and bounds every later search, which only asks whether one image more than best[k + 1] can be
  violated. A search that stops early has still solved the last images: they become a part of their own, the search
  begins again with the others, and the sum over the parts is a sound count.
* Colours. A family of choices that conflict in pairs gives at most one image.

A set that the duals cannot decide counts as violable. The answer rests on the conflicts alone (checker/cover.py asks
whether they imply the count), never on the course of the search.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from citrus.certify.search.memory import Memory, bits, completing
from citrus.certify.search.planes import Choice, ChoicePlanes, Conflict

AHEAD = 12  # sets that are decided at a node in one batch, or a few more
PAIRS = 512  # pairs decided between two looks at the clock
SLICE = 0.3  # share of the time that is left that one more image may use before a new part is started


@dataclass(frozen=True)
class SearchResult:
    """At least `survivors` images survive every delta; when `exact`, the planes prove no more than that."""

    survivors: int
    exact: bool
    violable: tuple[Choice, ...]  # the largest set met that counts as violable
    delta: Tensor | None  # (pixel,) violates it; None where the duals could not decide
    conflicts: tuple[Conflict, ...]  # they imply `survivors`: cover.covers(choices of each, labels, survivors, parts)
    parts: tuple[tuple[int, ...], ...]  # images that were counted together


class _Stop(Exception):
    """The time of a step is over."""


class _Node(NamedTuple):
    chosen: tuple[int, ...]
    mask: int  # chosen, as bits
    allowed: int  # choices that complete no known conflict with chosen
    seen: int  # kept perturbations that violate all of chosen


class SubsetSearch:
    """The search over one group. What it has learned stays: cuts and witnesses may be added to `known` between runs."""

    def __init__(self, planes: ChoicePlanes, now: Callable[[], float] = time.perf_counter) -> None:
        self.known, self.now = Memory(planes), now
        self.paired = False  # whether single choices and pairs are decided
        self.order: list[int] = []  # images with open choices
        self.best: list[int] = []  # most violable images among order[k:end]
        self.end = 0
        self.suffix: list[int] = []  # the same over all of order[k:], sums over parts
        self.upper: dict[tuple[int, int], int] = {}  # bounds of best by (k, end) from earlier runs, still valid
        self.nodes = 0
        self.end_of_step = float("inf")  # a point in time
        self.wanted = 1
        self.collected: list[int] = []
        self.reached: list[tuple[int, int | None]] = []  # sets that the search met, each with a kept delta if any

    def run(self, seconds: float = float("inf")) -> SearchResult:
        """Search until the count is exact or the time is over; the answer is then sound but perhaps not exact."""
        end_of_run = self.now() + seconds
        self.wanted, self.collected = 1, []
        self._decide_pairs(end_of_run)
        parts = self._count_parts(end_of_run)
        lost = sum(bound for _, bound in parts)
        counted = {image for part, _ in parts for image in part}
        parts += [((image,), 0) for image in range(self.known.planes.images) if image not in counted]
        violable, delta = self._largest()
        return SearchResult(
            survivors=self.known.planes.images - lost,
            exact=violable.bit_count() >= lost,
            violable=self.known.names(violable),
            delta=delta,
            conflicts=tuple(self.known.conflicts),
            parts=tuple(part for part, _ in parts),
        )

    def critical(self, count: int = 64, seconds: float = float("inf")) -> list[tuple[Choice, ...]]:
        """Violable sets of the largest size after a run: the certified count rises once every one of them is proved.

        At most `count` of them. None when an attack violates so many images on the network itself: the count is final.
        """
        size = self._largest()[0].bit_count()
        attacked = (self.known.span(mask).bit_count() for mask in self.known.attacked.values())
        if not size or size <= max(attacked, default=0):
            return []
        self.end_of_step = self.now() + seconds
        self.best, self.end, self.wanted, self.collected = self.suffix, len(self.order), count, []
        with suppress(_Stop):  # those found in time are returned
            self._reaches(_Node((), 0, self.known.alive, -1), 0, size)
        return [self.known.names(mask) for mask in self.collected]

    def _decide_pairs(self, end_of_run: float) -> None:
        """Single choices and pairs first: they are decided in large batches and prune the most."""
        if not self.paired:
            self.known.decide([(c,) for c in bits(self.known.alive)])
            pairs = self.known.undecided_pairs()
            half = (self.now() + end_of_run) / 2  # the rest is for larger sets
            while batch := list(islice(pairs, PAIRS)):
                if self.now() > half:
                    break  # the pairs that are left are decided where the search meets them, or in the next run
                self.known.decide(batch)
            else:
                self.paired = True
        self.order = self.order or self.known.arranged()

    def _count_parts(self, end_of_run: float) -> list[tuple[tuple[int, ...], int]]:
        """Parts of the images and how many of each can be violated at most."""
        parts: list[tuple[tuple[int, ...], int]] = []
        self.end = k = len(self.order)
        self.best = [0] * (k + 1)
        self.suffix = [0] * (k + 1)
        lost = 0
        while k > 0:
            rest = self.known.cliques(self.order[:k])
            if lost + self.best[k] + len(rest) <= self._largest()[0].bit_count():
                break  # the trivial bound of the others closes the gap
            try:
                self.end_of_step = self.now() + SLICE * max(0.0, end_of_run - self.now())
                self.best[k - 1] = self._step(k - 1)
                self.upper[k - 1, self.end] = self.best[k - 1]
                self.suffix[k - 1] = lost + self.best[k - 1]
                k -= 1
            except _Stop:
                if self.now() > end_of_run or k == self.end:
                    break
                parts.append((tuple(self.order[k : self.end]), self.best[k]))
                lost, self.end, self.best[k] = lost + self.best[k], k, 0
        for before in reversed(range(k)):
            self.suffix[before] = self.suffix[before + 1] + 1
        if k < self.end:
            parts.append((tuple(self.order[k : self.end]), self.best[k]))
        return parts + [(clique, 1) for clique in self.known.cliques(self.order[:k])]

    def _largest(self) -> tuple[int, Tensor | None]:
        """The largest set without a conflict that was met, one choice per image, and a kept delta that violates it."""
        best, delta = 0, None
        known = self.known
        for mask, k in [*((mask, k) for k, mask in enumerate(known.masks)), *self.reached]:
            if mask.bit_count() > best.bit_count() and (k is None or known.spans[k].bit_count() > best.bit_count()):
                taken = known.attainable(mask, self.order)
                if taken.bit_count() > best.bit_count():
                    best, delta = taken, None if k is None else known.deltas[k]
        return best, delta

    def _step(self, k: int) -> int:
        """best[k]: is there a violable set with image order[k] and best[k + 1] of the images after it?"""
        known, need = self.known, self.best[k + 1]
        if self.upper.get((k, self.end), need + 1) <= need:
            return need
        inside = sum(known.members[image] for image in self.order[k : self.end])
        images = sum(1 << image for image in self.order[k : self.end])
        for number, span in enumerate(known.spans):
            if (span & images).bit_count() > need:
                taken = known.attainable(known.masks[number] & inside, self.order[k : self.end])
                if taken.bit_count() > need:
                    self.reached.append((taken, number))
                    return need + 1
        root = _Node((), 0, inside & known.alive, -1)
        for c in bits(root.allowed & known.members[self.order[k]]):
            if self._reaches(self._child(root, c, root.allowed & ~known.members[self.order[k]]), k + 1, need):
                return need + 1
        return need

    def _child(self, node: _Node, c: int, allowed: int) -> _Node:
        mask = node.mask | 1 << c
        allowed &= ~self.known.clash[c] & ~completing(mask, self.known.touching[c])
        return _Node((*node.chosen, c), mask, allowed, node.seen & self.known.hits[c])

    def _reaches(self, node: _Node, k: int, need: int) -> bool:
        """Can `need` images of order[k:end] be violated together with the chosen ones?"""
        known, allowed = self.known, node.allowed
        self.nodes += 1
        if self.now() > self.end_of_step:
            raise _Stop
        if need == 0:
            self.collected.append(node.mask)
            self.reached.append((node.mask, known.witness(node.chosen)))
            return len(self.collected) >= self.wanted
        for at in range(k, self.end):
            mine = known.members[self.order[at]]
            if not allowed & mine:
                continue
            if self.best[at] < need or not self._colours(allowed, need):
                return False
            learned = len(known.log)
            self._look_ahead(node, allowed, at)
            allowed &= ~completing(node.mask, known.log[learned:])
            for c in bits(allowed & mine):
                if not allowed >> c & 1:
                    continue  # a conflict learned below a sibling
                if self._reaches(self._child(node, c, allowed & ~mine), at + 1, need - 1):
                    return True
                allowed &= ~completing(node.mask, known.log[learned:])
            allowed &= ~mine
        return False

    def _colours(self, allowed: int, need: int) -> bool:
        """Whether a greedy split of the choices into families that conflict in pairs has at least `need` families."""
        clash = self.known.clash
        for _ in range(need):
            if not allowed:
                return False
            family = allowed
            while family:
                low = family & -family
                allowed ^= low
                family &= clash[low.bit_length() - 1]
        return True

    def _look_ahead(self, node: _Node, allowed: int, k: int) -> None:
        """Decide the chosen set with each label of image order[k], and with some labels of later images."""
        wanted: list[int] = []
        for image in self.order[k : self.end]:
            mine = bits(allowed & self.known.members[image])
            wanted += [c for c in mine if not node.seen & self.known.hits[c]]
            if not wanted or len(wanted) >= AHEAD:
                break
        self.known.decide([(*node.chosen, c) for c in wanted])
