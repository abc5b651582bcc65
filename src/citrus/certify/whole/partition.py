"""Which open images go into one master problem, where memory does not hold all of them.

Losses of the problems add up, so each should have images that one perturbation does not violate together: planes that
point in different directions. By greedy choice, hardest first: an image goes where its direction meets least of those
that are there, as long as there is room. Directions are compared in few dimensions, on which they are thrown at random,
and no table of all pairs is made.
"""

import torch
from torch import Tensor

from citrus.certify.whole.choices import OpenChoices

DIMENSIONS = 256
ROWS = 2000  # of directions that are compared with all others at a time


def partition(choices: OpenChoices, count: int) -> list[Tensor]:
    """The numbers of the images with open choices in `count` parts of about equal size."""
    images = choices.image.unique()
    if count == 1:
        return [images]
    ways = _directions(choices)[images]
    room, size = -(-len(images) // count), torch.zeros(count, device=ways.device)
    cost = torch.zeros(count, len(images), device=ways.device)
    parts: list[list[int]] = [[] for _ in range(count)]
    hard = torch.cat([(some @ ways.T).clamp(min=0).sum(1) for some in ways.split(ROWS)])
    for image in hard.argsort(descending=True).tolist():
        best = int(torch.where(size < room, cost[:, image], torch.inf).argmin())
        parts[best].append(image)
        size[best] += 1
        cost[best] += (ways @ ways[image]).clamp(min=0)
    return [images[torch.tensor(sorted(part), device=images.device)] for part in parts if part]


def _directions(choices: OpenChoices) -> Tensor:
    """Of each image the mean direction in which its planes fall: (image, dimension)."""
    pixels = choices.adaptive.a.shape[1]
    thrown = torch.zeros(len(choices), min(pixels, DIMENSIONS), device=choices.image.device)
    generator = torch.Generator().manual_seed(0)
    ways = torch.eye(pixels) if pixels <= DIMENSIONS else torch.randn(pixels, DIMENSIONS, generator=generator)
    for some in torch.arange(len(choices), device=thrown.device).split(ROWS):
        pull = -choices.adaptive.a[some].float()
        thrown[some] = pull / pull.norm(dim=1, keepdim=True).clamp(min=1e-30) @ ways.to(thrown.device)
    mean = torch.zeros(len(choices.images.index), thrown.shape[1], device=thrown.device)
    mean.index_add_(0, choices.image, thrown)
    return mean / mean.norm(dim=1, keepdim=True).clamp(min=1e-30)
