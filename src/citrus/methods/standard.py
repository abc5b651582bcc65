"""Ordinary training: cross-entropy on clean images."""

from dataclasses import dataclass
from typing import ClassVar

from citrus.methods.base import Batch, MethodLoss


@dataclass(frozen=True)
class Standard:
    """Cross-entropy on clean images; no robustness is asked for."""

    name: ClassVar[str] = "standard"
    certified: ClassVar[bool] = False

    def check(self, batch_size: int) -> None:
        pass

    def loss(self, batch: Batch) -> MethodLoss:
        return MethodLoss(batch.clean_loss)
