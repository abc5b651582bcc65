"""Named settings: `recipe("mnist-0.1-citrus")` is a configuration to train as it is or to change.

Names are DATA-EPS-METHOD. The plain name carries the published hyper-parameters for CNN7 (`recipes/published.py`);
`-cpu` at the end marks ConvSmall settings that two CPU cores train in minutes (`recipes/cpu.py`).
"""

from dataclasses import dataclass

from citrus.errors import CitrusError, suggest
from citrus.recipes.cpu import CPU_RECIPES
from citrus.recipes.published import PUBLISHED_RECIPES
from citrus.training.config import TrainConfig

RECIPES: dict[str, TrainConfig] = {**CPU_RECIPES, **PUBLISHED_RECIPES}


@dataclass(frozen=True)
class Measured:
    """What a recipe gave, and on what: percentages of the test set, wall time of the training."""

    clean: float
    ibp_certified: float
    pgd: float
    universal: float
    minutes: float
    machine: str
    seeds: int


MEASURED: dict[str, Measured] = {}


def recipe(name: str) -> TrainConfig:
    """The configuration of a named recipe."""
    if name not in RECIPES:
        raise CitrusError(f"Unknown recipe {name!r}: {suggest(name, RECIPES)}")
    return RECIPES[name]
