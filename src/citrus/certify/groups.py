"""Which images share a perturbation: the three ways of forming groups.

Any partition of the test set gives a sound lower bound of its accuracy under ONE perturbation (theorem 3 of the paper),
so the partition may be chosen freely, but the row of a result must say how it was made.
"""

from typing import Literal

import torch
from torch import Tensor

Grouping = Literal["dataset", "correct", "adaptive"]
"""dataset: images in order, as they are. correct: misclassified images are dropped first, as RaVeN and RACoon do.
adaptive: misclassified images are dropped, images proved alone stand alone, and the others are grouped together."""


def form_groups(grouping: Grouping, size: int, correct: Tensor, alone: Tensor | None = None) -> list[Tensor]:
    """Groups as index tensors into the images; together they hold each kept image once.

    `correct` (n,) says which images are classified right, `alone` (n,) which are proved robust by themselves (only
    `adaptive` asks). The last group may be smaller. No image left means no group.
    """
    everything = torch.arange(len(correct), device=correct.device)
    if grouping == "dataset":
        return list(everything.split(size)) if len(everything) else []
    kept = everything[correct]
    if grouping == "correct" or alone is None:
        return list(kept.split(size)) if len(kept) else []
    open_images, proved = everything[correct & ~alone], everything[correct & alone]
    return [g for part in (open_images, proved) if len(part) for g in part.split(size)]
