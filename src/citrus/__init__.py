"""Citrus: networks that are provably robust against universal perturbations, proofs of it, and attacks on them.

import citrus
network = citrus.load_network("mnist-0.1")                       # or your own nn.Module
result = citrus.certify(network, images, labels, eps="8/255")    # groups of five that share a perturbation
run = citrus.train(citrus.recipe("quickstart"), out="runs/quickstart")
"""

import importlib
import sys
import types
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
    from citrus.certify import certify_into as certify_into
    from citrus.checker import CheckReport as CheckReport
    from citrus.checker import check as check
    from citrus.data import Dataset as Dataset
    from citrus.data import Splits as Splits
    from citrus.data import load as load_data  # noqa: F401
    from citrus.errors import CitrusError as CitrusError
    from citrus.errors import SoundnessError as SoundnessError
    from citrus.networks import Graph as Graph
    from citrus.networks import Normalize as Normalize
    from citrus.networks import build as build_network  # noqa: F401
    from citrus.networks import graph as graph
    from citrus.networks import load_network as load_network
    from citrus.networks.onnx import load_onnx as load_onnx
    from citrus.networks.onnx import save_onnx as save_onnx
    from citrus.recipes import recipe as recipe
    from citrus.training import Evaluation as Evaluation
    from citrus.training import Run as Run
    from citrus.training import TrainConfig as TrainConfig
    from citrus.training import evaluate as evaluate
    from citrus.training import evaluate_into as evaluate_into
    from citrus.training import load_run as load_run
    from citrus.training import train as train

# Names are loaded when first used, so that `citrus --help` need not wait for torch.
_PLACES = {
    "citrus.attacks": "Ascent UniversalResult pgd universal_pgd",
    "citrus.bounds": "Bounds Box alpha crown interval margin_rows",
    "citrus.certify": "Certification CertifySettings Verdict certify certify_into",
    "citrus.checker": "CheckReport check",
    "citrus.data": "Dataset Splits load:load_data",
    "citrus.errors": "CitrusError SoundnessError",
    "citrus.networks": "Graph Normalize build:build_network graph load_network",
    "citrus.networks.onnx": "load_onnx save_onnx",
    "citrus.recipes": "recipe",
    "citrus.training": "Evaluation Run TrainConfig evaluate evaluate_into load_run train",
}
_MODULES = {
    entry.split(":")[-1]: (module, entry.split(":")[0]) for module, names in _PLACES.items() for entry in names.split()
}
__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'citrus' has no attribute {name!r}")
    module, attribute = _MODULES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__


class _Package(types.ModuleType):
    """`citrus.certify` is the function, also when the package of that name was imported before it is looked up."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, types.ModuleType)):  # the import system binds packages here
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
