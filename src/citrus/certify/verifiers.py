"""The verifiers by name: ours, and the published systems as themselves."""

from dataclasses import dataclass, field, replace

from citrus.bounds import AlphaSettings, LinearSettings
from citrus.certify.joint import JointSettings
from citrus.certify.rounds import RoundSettings


@dataclass(frozen=True)
class Verifier:
    """Which stages run, and how."""

    interval: bool = True
    """Try plain interval bounds first, and take the better of interval and linear bound everywhere."""
    linear: LinearSettings = field(default_factory=lambda: LinearSettings(upper=False, planes=True))
    alpha: AlphaSettings | None = None
    """Optimised slopes for labels that are still open."""
    alpha_images: int | None = None
    """Optimise slopes only for so many images of a group, those nearest to a proof."""
    search: bool = True
    joint: RoundSettings | None = None
    """Joint refinement of the sets that decide the count."""


_PLAIN = LinearSettings(intersect=False, upper=False, planes=True)

VERIFIERS: dict[str, Verifier] = {
    # Every stage, until it stops paying.
    "citrus": Verifier(alpha=AlphaSettings(), joint=RoundSettings()),
    # Banerjee and Singh (2024): CROWN, 20 steps on the slopes of ten images, 20 joint steps on few sets.
    "racoon": Verifier(
        interval=False,
        linear=_PLAIN,
        alpha=AlphaSettings(iterations=20),
        alpha_images=10,
        joint=RoundSettings(joint=JointSettings(iterations=20, window=0), sets=9, growth=1, most=9, rounds=1),
    ),
    # Zeng et al. (2023): CROWN planes and the exact minimum over delta of the images they prove.
    "zeng": Verifier(interval=False, linear=_PLAIN),
}


def with_intervals(verifier: Verifier) -> Verifier:
    """The same with inner boxes by intervals: for networks on which CROWN for every layer is too dear."""
    linear = replace(verifier.linear, intermediate="interval")
    return replace(verifier, linear=linear)
