"""STAPS (Mao et al., NeurIPS 2023): TAPS within SABR's small box around an adversarial example."""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from citrus.attacks import Ascent
from citrus.methods.base import Batch
from citrus.methods.sabr import SABR, check_tau
from citrus.methods.taps import TAPS


@dataclass(frozen=True)
class STAPS(TAPS):
    """TAPS on a box of radius tau = tau_ratio * eps; while eps grows, and with nothing to attack, this is SABR."""

    name: ClassVar[str] = "staps"

    tau_ratio: float = 0.7
    """Radius of the small box as a share of eps: 1 is TAPS."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=10, step_size=0.2, decay_at=()))
    """The search for the adversarial example."""

    def check(self, batch_size: int) -> None:
        super().check(batch_size)
        check_tau(self.tau_ratio)

    def input_box(self, batch: Batch) -> tuple[Tensor, Tensor | float]:
        return SABR(self.tau_ratio, attack=self.attack).small_box(batch)
