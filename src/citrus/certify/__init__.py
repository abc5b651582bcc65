"""Certification of groups of images against one shared perturbation."""

import sys
import types
from typing import Any

from citrus.certify.cascade import CertifySettings as CertifySettings
from citrus.certify.cascade import certify as certify
from citrus.certify.cover import covers as covers
from citrus.certify.groups import form_groups as form_groups
from citrus.certify.learned import Contradiction as Contradiction
from citrus.certify.planes import Choice as Choice
from citrus.certify.planes import ChoicePlanes as ChoicePlanes
from citrus.certify.planes import Conflict as Conflict
from citrus.certify.planes import dual_value as dual_value
from citrus.certify.result import Certification as Certification
from citrus.certify.result import GroupResult as GroupResult
from citrus.certify.result import Verdict as Verdict
from citrus.certify.search import Budget as Budget
from citrus.certify.search import SearchResult as SearchResult
from citrus.certify.search import SubsetSearch as SubsetSearch
from citrus.certify.search import search_subsets as search_subsets


class _Callable(types.ModuleType):
    """`citrus.certify(network, images, labels, eps)` works although `citrus.certify` is also this package."""

    def __call__(self, *arguments: Any, **settings: Any) -> Certification:
        return certify(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
