"""How to certify, and what every stage of the cascade shares."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import get_args

import torch

from citrus.attacks import Ascent
from citrus.certify.groups import Grouping
from citrus.certify.verifiers import Intermediate, Verifier
from citrus.errors import CitrusError, suggest
from citrus.networks import Graph


@dataclass(frozen=True)
class CertifySettings:
    """How to certify."""

    group_size: int = 5
    """Images that share one perturbation; 1 is ordinary certification."""
    grouping: Grouping = "correct"
    """dataset, correct or adaptive: see citrus.certify.groups."""
    verifier: str = "citrus"
    """citrus (all stages), racoon or zeng (the published systems)."""
    intermediate: Intermediate = "auto"
    """Boxes of the inner layers: crown, early (by crown in the first two ReLU layers only), interval, or auto."""
    budget: float = 10.0
    """Seconds that one group may take for the search and the joint refinement."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=60, restarts=12))
    """The universal attack that gives the upper bound."""
    block: int = 0
    """Images that go through the cascade together, in whole groups; 0 chooses by device and network."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.grouping not in get_args(Grouping):
            raise CitrusError(f"Unknown grouping {self.grouping!r}: {suggest(self.grouping, get_args(Grouping))}")
        if self.group_size < 1 or self.block < 0 or not self.budget > 0:
            raise CitrusError(
                f"group_size must be at least 1, block not negative and budget positive, got {self.group_size}, "
                f"{self.block}, {self.budget}."
            )


@dataclass(frozen=True)
class Question:
    """What every stage shares: of which network, at which radius, and how to prove it."""

    graph: Graph
    eps: float
    settings: CertifySettings
    verifier: Verifier
    seconds: dict[str, float] = field(default_factory=dict)  # what each stage took so far

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started
