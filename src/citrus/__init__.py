"""Citrus: networks that are provably robust against universal perturbations, proofs of it, and attacks on them.

import citrus
network = citrus.load_network("mnist-0.1")                       # or your own nn.Module
result = citrus.certify(network, images, labels, eps="8/255")    # one perturbation for all of them
run = citrus.train(citrus.recipe("quickstart"), out="runs/quickstart")
"""

import importlib
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

from citrus.version import __version__ as __version__

if TYPE_CHECKING:
    from citrus.api import *  # noqa: F403


class _Package(types.ModuleType):
    """The names of citrus.api, imported when one is first used, so that `citrus --help` need not wait for torch.

    Modules of the package are found without it: they are imported while it is being made.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module 'citrus' has no attribute {name!r}")
        if name != "certify" and importlib.util.find_spec(f"citrus.{name}"):
            return importlib.import_module(f"citrus.{name}")
        api = importlib.import_module("citrus.api")
        if name == "__all__":
            return ["__version__", *(public for public in vars(api) if not public.startswith("_"))]
        return getattr(api, name)

    def __dir__(self) -> list[str]:
        return list(self.__all__)

    def __setattr__(self, name: str, value: object) -> None:
        if name != "certify":  # stays the function, also when the import system binds the package of that name
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
