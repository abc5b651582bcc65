"""Universal perturbations as training and `citrus attack` wrote them: uap/EPS.safetensors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from citrus.files import load_tensors


@dataclass(frozen=True)
class Perturbed:
    """What a universal attack found, as `training.perturbations` writes it, and what follows from it."""

    eps: float
    group_size: int
    classes: list[str]
    delta: Tensor
    groups: Tensor
    labels: Tensor
    clean: Tensor
    perturbed: Tensor
    fooled: Tensor
    shown: Tensor
    images: Tensor

    def __post_init__(self) -> None:
        images = self.images.shape == (len(self.shown), *self.worst.shape) and len(self.worst) in (1, 3)
        predictions = len(self.groups) == len(self.perturbed) == len(self.falls)
        if not images or not predictions or not 0 <= self.eps <= 1:
            raise ValueError("Images, perturbations and predictions do not fit together.")

    @property
    def right(self) -> Tensor:
        """Which images are right without a perturbation."""
        return self.clean == self.labels

    @property
    def falls(self) -> Tensor:
        """Which images are right without a perturbation and wrong with it."""
        return self.right & self.fooled.bool()

    @property
    def worst(self) -> Tensor:
        """The perturbation of the group that suffers most, whose images are shown."""
        return self.delta[self.groups[self.shown[0]]]

    def class_name(self, label: int) -> str:
        return str(self.classes[label]) if label < len(self.classes) else str(label)


def read_perturbed(file: Path) -> Perturbed:
    """Raises CitrusError for a damaged file; other errors mean that it holds something else."""
    tensors, header = load_tensors(file)
    values: dict[str, Any] = header | tensors
    return Perturbed(**values)
