"""Class-wise universal adversarial training (Benz et al., ICME 2021): UAT with one perturbation per class."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from citrus.methods.uat import UAT
from citrus.networks import Graph


@dataclass(frozen=True)
class CWUAT(UAT):
    """Each image meets the perturbation of its true class; a class that a batch lacks keeps its own as it is."""

    name: ClassVar[str] = "cw_uat"

    def count(self, graph: Graph) -> int:
        return graph.classes

    def spread(self, delta: Tensor, labels: Tensor) -> Tensor:
        return delta[labels]

    def gather(self, gradient: Tensor, labels: Tensor, count: int) -> Tensor:
        # A product, not index_add: on a GPU that adds in another order each time. No member: sum 0, sign 0, no step.
        member = torch.arange(count, device=labels.device)[:, None] == labels
        return (member.to(gradient.dtype) @ gradient.flatten(1)).view(count, *gradient.shape[1:])
