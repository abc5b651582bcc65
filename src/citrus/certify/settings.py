"""How to certify: what a user may choose, the verifiers by name, and what every stage of the cascade shares."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import torch

from citrus.attacks import Ascent
from citrus.bounds import AlphaSettings, LinearSettings
from citrus.bounds.chunks import free_memory
from citrus.bounds.linear import InnerBoxes
from citrus.certify.refine.sets import STRONGEST, JointSettings
from citrus.errors import CitrusError, suggest
from citrus.networks import Graph
from citrus.networks.operations import Arithmetic

Grouping = Literal["dataset", "correct", "adaptive"]
"""Which images share a perturbation. Any partition of the test set gives a sound lower bound of its accuracy under ONE
perturbation (theorem 3 of the paper), so it may be chosen freely, but a result must say how it was made.
dataset: images in order, as they are. correct: misclassified images are dropped first, as RaVeN and RACoon do.
adaptive: misclassified images are dropped, images proved alone stand alone, and the others are grouped together."""

Intermediate = Literal["auto", InnerBoxes]
MANY_NEURONS = 20_000  # CROWN for every inner layer costs a row per undecided neuron: ConvSmall has 5,000, CNN7 230,000


@dataclass(frozen=True)
class CertifySettings:
    """How to certify."""

    group_size: int | Literal["all"] = "all"
    """Images that share one perturbation: all of them, or so many; 1 is ordinary certification, 5 the paper's."""
    grouping: Grouping = "correct"
    """dataset, correct or adaptive."""
    verifier: str = "citrus"
    """citrus (all stages), racoon or zeng (the published systems)."""
    intermediate: Intermediate = "auto"
    """Boxes of the inner layers: crown, early (by crown in the first two ReLU layers only), interval, or auto."""
    budget: float = 10.0
    """Seconds that one group may take for the search and the joint refinement; one of more than `searched` images may
    take as much for every 20 of them, and for its master problem as much for every 20 open labels."""
    attack: Ascent = field(default_factory=lambda: Ascent(steps=60, restarts=12))
    """The universal attack that gives the upper bound."""
    block: int = 0
    """Images that go through the cascade together, in whole groups; 0 chooses by device and network."""
    searched: int = 50
    """Images up to which a group is searched as a whole; a larger one is searched in parts of 20 at most, and goes into
    one dual."""
    memory: int | None = None
    """Bytes that the dual of a large group may take; None takes half of what is free."""
    seed: int = 0
    arithmetic: Arithmetic = "real"
    """What the network is: real (the function of its weights over the real numbers) or float32 (every program that
    computes it in float32, in any order of summation: what is deployed)."""

    def __post_init__(self) -> None:
        if self.grouping not in get_args(Grouping):
            raise CitrusError(f"Unknown grouping {self.grouping!r}: {suggest(self.grouping, get_args(Grouping))}")
        if self.arithmetic not in get_args(Arithmetic):
            raise CitrusError(
                f"Unknown arithmetic {self.arithmetic!r}: {suggest(self.arithmetic, get_args(Arithmetic))}"
            )
        if self.group_size != "all" and (not isinstance(self.group_size, int) or self.group_size < 1):
            raise CitrusError(f"group_size must be a number from 1 on or 'all', got {self.group_size!r}.")
        if self.block < 0 or not self.budget > 0 or self.searched < 1:
            raise CitrusError(
                f"block must not be negative, budget positive and searched at least 1, got {self.block}, {self.budget} "
                f"and {self.searched}."
            )
        if self.memory is not None and self.memory < 1:
            raise CitrusError(f"memory must be a positive number of bytes, got {self.memory}.")

    def sized(self, images: int) -> "CertifySettings":
        """The same with a number for the group size."""
        return replace(self, group_size=max(1, images)) if self.group_size == "all" else self

    def room(self, device: torch.device) -> int:
        """Bytes that the dual of a large group may take."""
        return free_memory(device) // 2 if self.memory is None else self.memory


@dataclass(frozen=True)
class Verifier:
    """Which stages run, and how."""

    interval: bool = True
    """Try plain interval bounds first, and take the better of interval and linear bound everywhere."""
    linear: LinearSettings = field(default_factory=lambda: LinearSettings(upper=False))
    sharp: bool = False
    """Linear bounds of images that stay open once more in float64: what rounding takes from the boxes of inner layers
    is an image in some hundreds, and the published systems, which did not count it, are to be met exactly."""
    alpha: AlphaSettings | None = None  # optimised slopes for labels that are still open
    joint: JointSettings | None = None  # joint refinement of the sets that decide the count
    whole: bool = False  # one dual for all choices of a large group


_PLAIN = LinearSettings(intersect=False, upper=False)

VERIFIERS: dict[str, Verifier] = {
    # Every stage, until it stops paying.
    "citrus": Verifier(alpha=AlphaSettings(), joint=STRONGEST, whole=True),
    # Banerjee and Singh (2024): CROWN, 20 steps on the slopes, and 20 joint steps on few sets. Which sets is our
    # search's choice; they take pairs to quadruples of the best four images. They also optimise the boxes of the two
    # last inner layers, of ten images only: left out here, for no certificate can hold such boxes.
    "racoon": Verifier(
        interval=False,
        linear=_PLAIN,
        sharp=True,
        alpha=AlphaSettings(iterations=20),
        joint=JointSettings(iterations=20, window=0, sets=9, rounds=1),
    ),
    # Zeng et al. (2023): CROWN planes and the exact minimum over delta of the images they prove.
    "zeng": Verifier(interval=False, linear=_PLAIN, sharp=True),
}


def pick_verifier(name: str, intermediate: Intermediate, graph: Graph) -> Verifier:
    """A verifier by name, with inner boxes by CROWN, or only the early ones where a network is too large for that."""
    if name not in VERIFIERS:
        raise CitrusError(f"Unknown verifier {name!r}: {suggest(name, VERIFIERS)}")
    if intermediate not in get_args(Intermediate):
        raise CitrusError(f"Inner boxes are made by auto, crown, early or interval, got {intermediate!r}.")
    if intermediate == "auto":
        intermediate = "early" if graph.neurons > MANY_NEURONS else "crown"
    return replace(VERIFIERS[name], linear=replace(VERIFIERS[name].linear, intermediate=intermediate))


@dataclass(frozen=True)
class Question:
    """What every stage shares: of which network, at which radius, and how to prove it."""

    graph: Graph
    eps: float
    settings: CertifySettings
    verifier: Verifier
    seconds: dict[str, float] = field(default_factory=dict)  # what each stage took so far
    tell: Callable[[str], None] = lambda text: None  # hears how far a large group is
    keep_in: Path | None = None  # where the state of master problems is kept

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started
