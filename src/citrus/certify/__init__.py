"""Certification of groups of images against one shared perturbation."""

from citrus.certify.cover import covers
from citrus.certify.learned import Contradiction
from citrus.certify.planes import Choice, Conflict, Planes, dual_value
from citrus.certify.search import Budget, SearchResult, SubsetSearch, search_subsets

__all__ = [
    "Budget",
    "Choice",
    "Conflict",
    "Contradiction",
    "Planes",
    "SearchResult",
    "SubsetSearch",
    "covers",
    "dual_value",
    "search_subsets",
]
