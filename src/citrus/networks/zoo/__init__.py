"""Trained networks by name: ConvSmall of our best recipes, small enough to travel with the package.

    network = citrus.load_network("cifar10-2-255")
    print(cards()["cifar10-2-255"])          # how it was made and what was measured

cards.json holds the cards. All numbers are percent of the 10,000 test images of its data set.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Card:
    """What is known of one network."""

    name: str
    data: str
    """The data set it was trained for."""
    eps: float
    architecture: str
    recipe: str
    """Recipe and seed; `citrus train RECIPE` makes one like it."""
    training: str
    """Images, time and machine of its training, and how it was chosen."""
    chosen_by: str
    """What test images had to do with the choice of the network, if anything."""
    clean: float
    certified_alone: float
    """Proved one by one."""
    certified: float
    """Proved to survive every perturbation that five images share."""
    attacked: float
    """Left by the strongest perturbation found for each five images: an upper bound of `certified`."""
    measured: str
    """How the numbers were measured."""
    sha256: str
    """Of the file."""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.safetensors"


@cache
def cards() -> dict[str, Card]:
    """All networks of the zoo by name."""
    entries = json.loads((FOLDER / "cards.json").read_text(encoding="utf-8"))
    return {entry["name"]: Card(**entry) for entry in entries}
