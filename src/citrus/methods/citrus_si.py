"""CITRUS with same-input boxes: the paper's ablation that also trains each image on its own perturbation."""

from dataclasses import dataclass
from typing import ClassVar

from citrus.methods.citrus import Citrus


@dataclass(frozen=True)
class CitrusSI(Citrus):
    """CITRUS plus SABR's box: sum over all j, j = i included."""

    name: ClassVar[str] = "citrus_si"
    same_input: ClassVar[bool] = True
