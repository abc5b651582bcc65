"""Citrus: networks that are provably robust against universal perturbations, proofs of it, and attacks on them.

import citrus
run = citrus.train(citrus.recipe("quickstart"), out="runs/quickstart")
result, attack = citrus.evaluate(run.network, images, labels, eps="8/255")
"""

import importlib
from typing import TYPE_CHECKING, Any

from citrus.version import __version__ as __version__

if TYPE_CHECKING:
    from citrus.attacks import Ascent as Ascent
    from citrus.attacks import UniversalResult as UniversalResult
    from citrus.attacks import pgd as pgd
    from citrus.attacks import universal_pgd as universal_pgd
    from citrus.bounds import Bounds as Bounds
    from citrus.bounds import Box as Box
    from citrus.bounds import alpha as alpha
    from citrus.bounds import crown as crown
    from citrus.bounds import interval as interval
    from citrus.bounds import margin_rows as margin_rows
    from citrus.certify import Certification as Certification
    from citrus.certify import CertifySettings as CertifySettings
    from citrus.certify import Verdict as Verdict
    from citrus.certify import certify as certify
    from citrus.data import Dataset as Dataset
    from citrus.data import Splits as Splits
    from citrus.data import load as load_data
    from citrus.errors import CitrusError as CitrusError
    from citrus.errors import SoundnessError as SoundnessError
    from citrus.networks import Graph as Graph
    from citrus.networks import Normalize as Normalize
    from citrus.networks import build as build_network
    from citrus.networks import graph as graph
    from citrus.recipes import recipe as recipe
    from citrus.training import Evaluation as Evaluation
    from citrus.training import Run as Run
    from citrus.training import TrainConfig as TrainConfig
    from citrus.training import evaluate as evaluate
    from citrus.training import load_run as load_run
    from citrus.training import train as train

# Names are loaded when first used, so that `citrus --help` need not wait for torch.
_PLACES = {
    "citrus.attacks": "Ascent UniversalResult pgd universal_pgd",
    "citrus.bounds": "Bounds Box alpha crown interval margin_rows",
    "citrus.certify": "Certification CertifySettings Verdict certify",
    "citrus.data": "Dataset Splits load:load_data",
    "citrus.errors": "CitrusError SoundnessError",
    "citrus.networks": "Graph Normalize build:build_network graph",
    "citrus.recipes": "recipe",
    "citrus.training": "Evaluation Run TrainConfig evaluate load_run train",
}
_MODULES = {
    entry.split(":")[-1]: (module, entry.split(":")[0]) for module, names in _PLACES.items() for entry in names.split()
}

__all__ = [
    "Ascent",
    "Bounds",
    "Box",
    "Certification",
    "CertifySettings",
    "CitrusError",
    "Dataset",
    "Evaluation",
    "Graph",
    "Normalize",
    "Run",
    "SoundnessError",
    "Splits",
    "TrainConfig",
    "UniversalResult",
    "Verdict",
    "__version__",
    "alpha",
    "build_network",
    "certify",
    "crown",
    "evaluate",
    "graph",
    "interval",
    "load_data",
    "load_run",
    "margin_rows",
    "pgd",
    "recipe",
    "train",
    "universal_pgd",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'citrus' has no attribute {name!r}")
    module, attribute = _MODULES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
