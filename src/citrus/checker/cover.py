"""Do these conflicts imply this count? A small check in plain Python that shares nothing with the search.

Image i may be violated through any of labels[i], one label at a time; a conflict is a set of (image, label) choices
that no perturbation violates together. At least `survivors` of n images survive when every way to choose labels for
n - survivors + 1 images contains a conflict. `most_violated` finds the largest way without one. It takes the images
one by one from the back of an order: best[k] is the answer for the images from k on, and the question whether one image
more than best[k + 1] can be had is given up wherever best says that the images left are too few.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

Choice = tuple[int, int]


class Conflicts:
    """Sets of choices that no perturbation violates together, found by their images."""

    def __init__(self, conflicts: Iterable[Iterable[Choice]]) -> None:
        self.by_image = defaultdict[int, list[frozenset[Choice]]](list)
        for conflict in dict.fromkeys(frozenset((int(i), int(j)) for i, j in one) for one in conflicts):
            for image in {i for i, _ in conflict}:
                self.by_image[image].append(conflict)

    def within(self, images: Collection[int]) -> list[frozenset[Choice]]:
        """Those that are about these images only."""
        inside = set(images)
        found = dict.fromkeys(c for image in inside for c in self.by_image.get(image, ()))
        return [conflict for conflict in found if all(image in inside for image, _ in conflict)]

    def settle(self, choice: Choice) -> bool:
        """Whether no perturbation violates this choice."""
        return frozenset([choice]) in self.by_image.get(choice[0], ())

    def exclude(self, one: Choice, other: Choice) -> bool:
        """Whether no perturbation violates both."""
        return frozenset([one, other]) in self.by_image.get(one[0], ())


def covers(
    conflicts: Iterable[Iterable[Choice]],
    labels: Sequence[Sequence[int]],
    survivors: int,
    parts: Sequence[Sequence[int]] | None = None,
) -> bool:
    """True when the conflicts leave at least `survivors` of the len(labels) images unviolated."""
    split = [range(len(labels))] if parts is None else parts
    if not are_apart(split, len(labels)):
        return False
    return most_lost(Conflicts(conflicts), labels, split) <= len(labels) - survivors


def are_apart(parts: Sequence[Sequence[int]], images: int) -> bool:
    """Whether no image is in two parts, and all exist."""
    counted = [image for part in parts for image in part]
    return len(set(counted)) == len(counted) and all(0 <= image < images for image in counted)


def most_lost(conflicts: Conflicts, labels: Sequence[Sequence[int]], parts: Sequence[Sequence[int]]) -> int:
    """At most so many images are violated.

    `parts` splits the images into groups that are counted one by one, as a search does that its budget ended: what the
    parts can lose adds up to a bound of the whole, so any split is sound. Images in no part count as violated.
    """
    lost = len(labels) - sum(map(len, parts))
    return lost + sum(most_violated(conflicts.within(part), labels, part) for part in parts)


def most_violated(
    conflicts: Sequence[frozenset[Choice]],
    labels: Sequence[Sequence[int]] | Mapping[int, Sequence[int]],
    part: Collection[int],
) -> int:
    """The most images of `part` that can be given one of their labels each without containing a conflict."""
    inside = set(part)
    mine = [c for c in conflicts if c and all(image in inside for image, _ in c)]
    alone = {choice for c in mine if len(c) == 1 for choice in c}
    degree = dict.fromkeys(part, 0)
    for conflict in mine:
        for image, _ in conflict:
            degree[image] += 1
    order = sorted(part, key=degree.__getitem__)  # the most entangled images are counted first
    options = [[(i, j) for j in labels[i] if (i, j) not in alone] for i in order]
    bit = {choice: 1 << n for n, choice in enumerate(choice for row in options for choice in row)}
    pairs, wide = dict.fromkeys(bit, 0), {choice: list[int]() for choice in bit}
    for conflict in mine:
        if len(conflict) > 1 and all(choice in bit for choice in conflict):
            mask = sum(bit[choice] for choice in conflict)
            for choice in conflict:
                if len(conflict) == 2:
                    pairs[choice] |= mask & ~bit[choice]
                else:
                    wide[choice].append(mask)
    best = [0] * (len(order) + 1)

    def reaches(chosen: int, barred: int, position: int, need: int) -> bool:
        for k in range(position, len(order)):
            if need == 0 or best[k] < need:
                break
            for choice in options[k]:
                grown = chosen | bit[choice]
                if barred & bit[choice] or any(mask & ~grown == 0 for mask in wide[choice]):
                    continue
                if reaches(grown, barred | pairs[choice], k + 1, need - 1):
                    return True
        return need == 0

    for k in reversed(range(len(order))):
        more = any(reaches(bit[choice], pairs[choice], k + 1, best[k + 1]) for choice in options[k])
        best[k] = best[k + 1] + more
    return best[0]
