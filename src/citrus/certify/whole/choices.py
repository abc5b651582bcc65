"""The choices that single-image proofs leave open, with what better planes are made from."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citrus.bounds import Box, Planes
from citrus.certify.alone import Singles
from citrus.certify.whole.dual import Cut
from citrus.certify.whole.leaves import LEVELS, Leaves, OpenImages

Key = tuple[int, int]
"""A choice: the place of its image in the data set, and the wrong label."""


@dataclass(frozen=True)
class OpenChoices:
    """Choices (image, wrong label) of open images, each with the plane that adaptive slopes give it."""

    images: OpenImages
    image: Tensor  # (choice,): its image, counted among these
    wrong: Tensor  # (choice,): the wrong label
    adaptive: Planes  # (choice, pixel) and (choice,)
    slopes: Tensor  # (choice, neuron): optimised ones as bytes; (choice, 0) if the verifier has none

    @staticmethod
    def of(singles: Singles) -> "OpenChoices":
        """Of the images of a block that are classified right."""
        hard = singles.correct[singles.choices[:, 0]]
        image, row = singles.choices[hard].unbind(1)
        some, number = image.unique(return_inverse=True)
        place = torch.zeros_like(singles.index).index_put((singles.live,), torch.arange(len(singles.live)).to(image))
        none = singles.images.new_zeros(len(singles.live), 0)
        centres, radii = ([getattr(box, end).flatten(1) for box in singles.boxes] for end in ("centre", "radius"))
        boxes = Box(torch.cat([none, *centres], 1), torch.cat([none, *radii], 1))
        slopes = [(s[place[image], row] * LEVELS).round().byte().flatten(1) for s in singles.slopes]
        return OpenChoices(
            images=OpenImages(singles.index[some], singles.images[some], singles.labels[some], boxes[place[some]]),
            image=number,
            wrong=singles.wrong[image, row],
            adaptive=singles.planes[0][hard] if singles.planes else _no_planes(singles),
            slopes=torch.cat([image.new_zeros(len(image), 0, dtype=torch.uint8), *slopes], 1),
        )

    @staticmethod
    def joined(parts: Sequence["OpenChoices"]) -> "OpenChoices":
        parts = [part for part in parts if len(part)] or list(parts[:1])
        before = torch.tensor([0, *(len(part.images.index) for part in parts)]).cumsum(0).tolist()
        shifted = [part.image + start for part, start in zip(parts, before, strict=False)]
        boxes = [part.images.boxes for part in parts]
        return OpenChoices(
            images=OpenImages(
                torch.cat([part.images.index for part in parts]),
                torch.cat([part.images.centre for part in parts]),
                torch.cat([part.images.labels for part in parts]),
                Box(torch.cat([box.centre for box in boxes]), torch.cat([box.radius for box in boxes])),
            ),
            image=torch.cat(shifted),
            wrong=torch.cat([part.wrong for part in parts]),
            adaptive=Planes(torch.cat([p.adaptive.a for p in parts]), torch.cat([p.adaptive.b for p in parts])),
            slopes=torch.cat([part.slopes for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.image)

    def of_images(self, which: Tensor) -> "OpenChoices":
        """The choices of some of the images (which,), in this order of images."""
        number = torch.full_like(self.images.index, -1).index_copy_(0, which, torch.arange(len(which)).to(which))
        mine = self.only(number[self.image] >= 0)
        return replace(mine, images=self.images[which], image=number[mine.image])

    def only(self, mine: Tensor) -> "OpenChoices":
        """Some of the choices, with all images."""
        image, wrong, slopes = self.image[mine], self.wrong[mine], self.slopes[mine]
        return replace(self, image=image, wrong=wrong, adaptive=self.adaptive[mine], slopes=slopes)

    @property
    def keys(self) -> list[Key]:
        return list(zip(self.images.index[self.image].tolist(), self.wrong.tolist(), strict=True))

    @property
    def leaves(self) -> Leaves:
        """Each choice as one leaf."""
        choice = torch.arange(len(self), device=self.image.device)
        return Leaves(choice, choice.new_zeros(len(self), 0, 2), self.slopes)


@dataclass(frozen=True)
class Known:
    """What has been proved about open choices together."""

    pairs: tuple[tuple[Key, Key], ...] = ()
    """No perturbation violates both."""
    cuts: tuple[tuple[tuple[Key, ...], int], ...] = ()
    """Of these at most so many images are violated."""

    def about(self, choices: OpenChoices) -> "Facts":
        """The same about numbered choices; a cut of which only some are here still holds."""
        number = {key: k for k, key in enumerate(choices.keys)}
        pairs = [(number[p], number[q]) for p, q in self.pairs if p in number and q in number]
        cuts = [(tuple(number[key] for key in some if key in number), most) for some, most in self.cuts]
        return Facts(choices.image, tuple(pairs), tuple((some, most) for some, most in cuts if len(some) > most))


@dataclass(frozen=True)
class Facts:
    """What excludes choices beside their planes: they belong to one image, or something is known about them."""

    image: Tensor  # (choice,)
    pairs: tuple[tuple[int, int], ...] = ()
    cuts: tuple[Cut, ...] = ()

    def about(self, choice: Tensor) -> tuple[Tensor, tuple[Cut, ...]]:
        """Pairs and cuts of leaves, given the choice of each: (pair, 2), and a cut for each cut."""
        images, leaves = self.image[choice].tolist(), defaultdict[int, list[int]](list)
        by_image, pairs = defaultdict[int, list[int]](list), list[tuple[int, int]]()
        for leaf, (image, own) in enumerate(zip(images, choice.tolist(), strict=True)):
            pairs += [(other, leaf) for other in by_image[image]]
            by_image[image].append(leaf)
            leaves[own].append(leaf)
        for one, other in self.pairs:
            pairs += [(min(p, q), max(p, q)) for p in leaves[one] for q in leaves[other]]
        found = torch.tensor(sorted(set(pairs)), dtype=torch.long, device=choice.device).reshape(-1, 2)
        return found, tuple((tuple(leaf for own in some for leaf in leaves[own]), most) for some, most in self.cuts)


def _no_planes(singles: Singles) -> Planes:
    return Planes(singles.images.new_zeros(0, singles.images[0].numel()).double(), singles.images.new_zeros(0).double())
