"""What the search remembers about the choices of a group: conflicts that were proved, perturbations that were met.

Both are kept as bit sets over the choices (Python integers). A conflict rules out every superset, a perturbation shows
every subset of what it violates, so most questions are answered here before any dual is computed.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import and_

import torch
from torch import Tensor

from citrus.certify.search.duals import Oracle
from citrus.certify.search.planes import Choice, ChoicePlanes, Conflict

ROOM = 1 << 25  # numbers in the perturbations that are kept: 256 MB


class Contradiction(RuntimeError):
    """A perturbation that is known to violate a set which a conflict proves safe: some plane or cut is unsound."""


def bits(mask: int) -> Iterator[int]:
    """Positions of the ones, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def completing(mask: int, conflicts: Iterable[int]) -> int:
    """The choices that would complete one of these conflicts with those in a bit set."""
    found = 0
    for conflict in conflicts:
        rest = conflict & ~mask
        if rest & (rest - 1) == 0:
            found |= rest
    return found


class Memory:
    """Conflicts and perturbations of one group, and the questions to the oracle that add to them."""

    def __init__(self, planes: ChoicePlanes) -> None:
        count = len(planes.choices)
        self.planes, self.oracle = planes, Oracle(planes)
        self.position = {choice: c for c, choice in enumerate(planes.choices)}
        self.members = [0] * planes.images  # choices of each image
        for c, (image, _) in enumerate(planes.choices):
            self.members[image] |= 1 << c
        self.alive = (1 << count) - 1  # choices that are not proved alone
        self.clash = [self.members[image] & ~(1 << c) for c, (image, _) in enumerate(planes.choices)]  # in pairs
        self.touching: list[list[int]] = [[] for _ in range(count)]  # conflicts of three or more choices
        self.conflicts: list[Conflict] = []
        self.log: list[int] = []  # the same as bit sets
        self.deltas: list[Tensor] = []
        self.masks: list[int] = []  # choices that each kept delta violates
        self.spans: list[int] = []  # images of these choices
        self.attacked: dict[int, int] = {}  # of kept delta k: choices it violates on the network itself
        self.hits = [0] * count  # kept deltas that violate the choice
        self.sets = 0  # that the oracle was asked about

    def names(self, mask: int) -> tuple[Choice, ...]:
        """The choices in a bit set."""
        return tuple(sorted(self.planes.choices[c] for c in bits(mask)))

    def span(self, mask: int) -> int:
        """The images with a choice in a bit set that is not proved alone, as bits."""
        return sum(1 << image for image, mine in enumerate(self.members) if mask & mine & self.alive)

    def add_cut(self, choices: Iterable[Choice]) -> None:
        """Use a proof found elsewhere that these choices cannot all be violated by one delta."""
        cut = tuple(sorted(choices))
        if all(choice in self.position for choice in cut):  # a label that is not open cannot be violated anyway
            self.learn(Conflict(cut))

    def add_witness(self, delta: Tensor, choices: Iterable[Choice] = ()) -> None:
        """Start from a delta, for instance of an attack, and the choices it violates on the network itself."""
        eps = self.planes.eps
        known = sum(1 << self.position[choice] for choice in set(choices) if choice in self.position)
        for mask in self.log:
            if mask & ~known == 0:
                raise Contradiction(f"a delta violates {self.names(known)}, but {self.names(mask)} is proved safe.")
        self.keep([delta.flatten().to(self.planes.slopes).clamp(-eps, eps)], known)

    def learn(self, conflict: Conflict) -> None:
        """Remember a conflict unless a smaller one is known."""
        mask = sum(1 << self.position[choice] for choice in conflict.choices)
        chosen = list(bits(mask))
        known = any(mask & self.clash[c] for c in chosen) or mask & ~self.alive
        if known or any(old & ~mask == 0 for c in chosen for old in self.touching[c]):
            return
        for k, attacked in self.attacked.items():
            if mask & ~attacked == 0:
                raise Contradiction(f"kept delta {k} violates {self.names(mask)}, which is now proved safe.")
        self.conflicts.append(conflict)
        self.log.append(mask)
        if len(chosen) == 1:
            self.alive &= ~mask
        for c in chosen:
            if len(chosen) == 2:
                self.clash[c] |= mask & ~(1 << c)
            elif len(chosen) > 2:
                self.touching[c].append(mask)

    def keep(self, deltas: Sequence[Tensor], attacked: int = 0) -> None:
        """Remember perturbations and all they violate, unless an older one violates the same choices and more."""
        masks = self.oracle.violated(torch.stack(list(deltas))) if deltas else []
        for delta, mask in zip(deltas, [mask | attacked for mask in masks], strict=True):
            full = len(self.deltas) * delta.numel() > ROOM
            if not attacked and (full or any(mask & ~old == 0 for old in self.masks)):
                continue
            k = len(self.deltas)
            self.deltas.append(delta)
            self.masks.append(mask)
            self.spans.append(self.span(mask))
            if attacked:
                self.attacked[k] = attacked
            for c in bits(mask):
                self.hits[c] |= 1 << k

    def witness(self, chosen: Iterable[int]) -> int | None:
        """The number of a kept perturbation that violates all of these choices, if there is one."""
        return next(bits(reduce(and_, (self.hits[c] for c in chosen))), None)

    def decide(self, sets: Sequence[tuple[int, ...]]) -> None:
        """Ask the oracle about each set, and learn from every answer."""
        answers = self.oracle.settle(sets)
        self.sets += len(sets)
        for answer in answers:
            if answer.conflict is not None:
                self.learn(answer.conflict)
        self.keep([answer.delta for answer in answers if answer.delta is not None])

    def undecided_pairs(self) -> Iterator[tuple[int, int]]:
        """Pairs that neither a conflict nor a kept perturbation decides."""
        for c in bits(self.alive):
            for other in bits(self.alive & ~self.clash[c] & ~((2 << c) - 1)):
                if not self.hits[c] & self.hits[other]:
                    yield c, other

    def attainable(self, mask: int, order: Sequence[int]) -> int:
        """A set within `mask`, one choice per image of `order`, that holds no conflict: greedy, as bits."""
        taken = 0
        for image in order:
            for c in bits(mask & self.members[image] & self.alive):
                grown = taken | 1 << c
                if not (taken & self.clash[c]) and not any(old & ~grown == 0 for old in self.touching[c]):
                    taken = grown
                    break
        return taken

    def arranged(self) -> list[int]:
        """Images that conflict much with others last: the search begins there, and its first counts are low."""
        open_choices = {image: mask & self.alive for image, mask in enumerate(self.members) if mask & self.alive}
        clashes = {
            image: sum(self.clash[c].bit_count() for c in bits(mask)) / mask.bit_count()
            for image, mask in open_choices.items()
        }
        return sorted(clashes, key=clashes.__getitem__)

    def cliques(self, images: Iterable[int]) -> list[tuple[int, ...]]:
        """Split images into families of which one delta violates at most one; images proved alone are in none."""
        families: list[tuple[list[int], int]] = []
        for image in images:
            mine = self.members[image] & self.alive
            if not mine:
                continue
            common = reduce(and_, (self.clash[c] for c in bits(mine)))
            for k, (family, mask) in enumerate(families):
                if mask & ~common == 0:
                    family.append(image)
                    families[k] = (family, mask | mine)
                    break
            else:
                families.append(([image], mine))
        return [tuple(family) for family, _ in families]
