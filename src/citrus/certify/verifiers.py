"""The verifiers by name: ours, and the published systems as themselves."""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from citrus.bounds import AlphaSettings, LinearSettings
from citrus.bounds.linear import InnerBoxes
from citrus.certify.refine.ascent import JointSettings
from citrus.certify.refine.rounds import STRONGEST, RoundSettings
from citrus.errors import CitrusError, suggest
from citrus.networks import Graph


@dataclass(frozen=True)
class Verifier:
    """Which stages run, and how."""

    interval: bool = True
    """Try plain interval bounds first, and take the better of interval and linear bound everywhere."""
    linear: LinearSettings = field(default_factory=lambda: LinearSettings(upper=False, planes=True))
    alpha: AlphaSettings | None = None  # optimised slopes for labels that are still open
    alpha_images: int | None = None  # optimise slopes only for so many images of a group, those nearest to a proof
    joint: RoundSettings | None = None  # joint refinement of the sets that decide the count


_PLAIN = LinearSettings(intersect=False, upper=False, planes=True)

VERIFIERS: dict[str, Verifier] = {
    # Every stage, until it stops paying.
    "citrus": Verifier(alpha=AlphaSettings(), joint=STRONGEST),
    # Banerjee and Singh (2024): CROWN, 20 steps on the slopes of ten images and on their two last inner layers, and 20
    # joint steps on few sets. Which sets is our search's choice; they take pairs to quadruples of the best four images.
    # Optimised inner boxes are not part of certificates: proofs that need them are left out there.
    "racoon": Verifier(
        interval=False,
        linear=_PLAIN,
        alpha=AlphaSettings(iterations=20, inner_layers=2),
        alpha_images=10,
        joint=RoundSettings(joint=JointSettings(iterations=20, window=0), sets=9, rounds=1),
    ),
    # Zeng et al. (2023): CROWN planes and the exact minimum over delta of the images they prove.
    "zeng": Verifier(interval=False, linear=_PLAIN),
}


Intermediate = Literal["auto", InnerBoxes]
MANY_NEURONS = 20_000  # CROWN for every inner layer costs a row per undecided neuron: ConvSmall has 5,000, CNN7 230,000


def pick(name: str, intermediate: Intermediate, graph: Graph) -> Verifier:
    """A verifier by name, with inner boxes by CROWN, or only the early ones where a network is too large for that."""
    if name not in VERIFIERS:
        raise CitrusError(f"Unknown verifier {name!r}: {suggest(name, VERIFIERS)}")
    if intermediate not in get_args(Intermediate):
        raise CitrusError(f"Inner boxes are made by auto, crown, early or interval, got {intermediate!r}.")
    if intermediate == "auto":
        intermediate = "early" if graph.neurons > MANY_NEURONS else "crown"
    return replace(VERIFIERS[name], linear=replace(VERIFIERS[name].linear, intermediate=intermediate))
