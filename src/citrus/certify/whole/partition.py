"""Which open images go into one master problem, where memory does not hold all of them.

Losses of the problems add up, so each should have images that one perturbation does not violate together: planes that
point in different directions. By greedy choice, hardest first: an image goes where its direction meets least of those
that are there, as long as there is room.
"""

import torch
from torch import Tensor

from citrus.certify.whole.choices import OpenChoices


def partition(choices: OpenChoices, count: int) -> list[Tensor]:
    """The numbers of the images with open choices in `count` parts of about equal size."""
    images = choices.image.unique()
    if count == 1:
        return [images]
    pull = -choices.adaptive.a.float()
    pull = pull / pull.norm(dim=1, keepdim=True).clamp(min=1e-30)
    mean = torch.zeros(len(choices.images.index), pull.shape[1], device=pull.device).index_add_(0, choices.image, pull)
    mean = mean[images] / mean[images].norm(dim=1, keepdim=True).clamp(min=1e-30)
    meets = mean @ mean.T
    room, size = -(-len(images) // count), torch.zeros(count, device=pull.device)
    cost = torch.zeros(count, len(images), device=pull.device)
    parts: list[list[int]] = [[] for _ in range(count)]
    order = meets.clamp(min=0).sum(1).argsort(descending=True)
    for image in order.tolist():
        best = int(torch.where(size < room, cost[:, image], torch.inf).argmin())
        parts[best].append(image)
        size[best] += 1
        cost[best] += meets[image].clamp(min=0)
    return [images[torch.tensor(sorted(part), device=images.device)] for part in parts if part]
