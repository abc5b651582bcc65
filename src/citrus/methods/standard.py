"""Ordinary training: cross-entropy on clean images."""

from dataclasses import dataclass
from typing import ClassVar

from citrus.methods.base import Batch, Method, MethodLoss


@dataclass(frozen=True)
class Standard(Method):
    """Cross-entropy on clean images; no robustness is asked for."""

    name: ClassVar[str] = "standard"
    certified: ClassVar[bool] = False

    def loss(self, batch: Batch) -> MethodLoss:
        return MethodLoss(batch.clean_loss)
