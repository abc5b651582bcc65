"""Named settings: `recipe("mnist-0.1-citrus")` is a configuration to train as it is or to change.

Names are DATA-EPS-METHOD. The plain name carries the published hyper-parameters for CNN7 (`recipes/published.py`);
those of our own are in `recipes/found.py`: `-cpu` at the end marks ConvSmall settings that two CPU cores train in
minutes, `-convsmall` and `-cnn7` what our search found for a GPU.
"""

from dataclasses import dataclass

from citrus.errors import CitrusError, suggest
from citrus.recipes.found import CPU_RECIPES, FOUND_RECIPES
from citrus.recipes.published import PUBLISHED_RECIPES
from citrus.training.config import TrainConfig

RECIPES: dict[str, TrainConfig] = {**CPU_RECIPES, **FOUND_RECIPES, **PUBLISHED_RECIPES}


@dataclass(frozen=True)
class RecipeResult:
    """What a recipe gave with one seed: percent of the test set, minutes of training (results/runs.jsonl)."""

    clean: float
    ibp_certified: float
    minutes: float


MEASURED: dict[str, RecipeResult] = {
    # two cores of an Intel Xeon, torch 2.13.0+cpu
    "quickstart": RecipeResult(96.30, 82.40, 0.9),
    "mnist-0.1-citrus-cpu": RecipeResult(98.53, 94.09, 13.4),
    # one of them
    "mnist-0.1-citrus-convsmall": RecipeResult(98.68, 95.04, 52.3),
    "cifar10-2-255-citrus_si-linear-convsmall": RecipeResult(63.26, 21.49, 7.7),
    # an H200, torch 2.11.0+cu130, shared by seven to nine runs
    "mnist-0.3-citrus-convsmall": RecipeResult(97.27, 87.65, 2.4),
    "cifar10-2-255-citrus_si-convsmall": RecipeResult(64.38, 19.81, 12.3),
    "cifar10-8-255-citrus_si-convsmall": RecipeResult(42.46, 27.86, 2.5),
    # shared by two runs
    "mnist-0.1-citrus-cnn7": RecipeResult(99.29, 96.86, 3.0),
    "mnist-0.3-citrus-cnn7": RecipeResult(98.80, 91.96, 2.2),
    "cifar10-2-255-citrus-cnn7": RecipeResult(74.90, 35.99, 5.7),
    "cifar10-8-255-citrus-cnn7": RecipeResult(54.98, 33.59, 16.0),
    # not shared
    "cifar10-8-255-citrus-longer-cnn7": RecipeResult(55.14, 33.80, 3.1),
}


def recipe(name: str) -> TrainConfig:
    """The configuration of a named recipe."""
    if name not in RECIPES:
        raise CitrusError(f"Unknown recipe {name!r}: {suggest(name, RECIPES)}")
    return RECIPES[name]
