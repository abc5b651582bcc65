"""What certification says: a verdict and two counts per group, and the percentages they add up to."""

from dataclasses import dataclass, field
from enum import StrEnum

from citrus.attacks.alarm import Alarm
from citrus.certify.unseen import least_share, share_from_batches
from citrus.networks.operations import Arithmetic

ALONE = ("interval", "crown", "alpha")
"""Stages that prove one image at a time, cheapest first."""
STAGES = (*ALONE, "search", "joint", "whole")
"""All stages that prove images; the last three prove them in their group, `whole` in one dual for a large one."""


class Verdict(StrEnum):
    """The closed set of answers about one group."""

    CERTIFIED = "certified"
    """Every image of the group survives every perturbation."""
    ATTACKED = "attacked"
    """The exact count is known: some images fall to one perturbation, and all others are proved."""
    UNKNOWN = "unknown"
    """The proof and the attack leave a gap, and the verifier gave up before its time was over."""
    TIMEOUT = "timeout"
    """The proof and the attack leave a gap, and the group's time was over."""
    ERROR = "error"
    """Memory ran out, or an attack broke a proof, which is a bug; the group counts as not certified."""


@dataclass(frozen=True)
class GroupResult:
    """One group: at least `certified` and at most `attacked` of its images survive every shared perturbation."""

    group: int
    index: tuple[int, ...]
    """Places of its images in the data set."""
    correct: int
    certified: int
    attacked: int
    verdict: Verdict
    stages: dict[str, int] = field(default_factory=dict)
    """Images by the stage that proved them; see STAGES."""
    seconds: float = 0.0
    """Its share of the stages that work on many groups at once, and its own search and refinement."""
    note: str = ""


def verdict_of(size: int, certified: int, attacked: int, timed_out: bool) -> Verdict:
    """What both counts say about a group of this size."""
    if certified == size:
        return Verdict.CERTIFIED
    if certified == attacked:
        return Verdict.ATTACKED
    return Verdict.TIMEOUT if timed_out else Verdict.UNKNOWN


@dataclass(frozen=True)
class Certification:
    """All groups of a data set."""

    rows: tuple[GroupResult, ...]
    images: int
    """Images of the data set, those that no group holds (misclassified ones) included."""
    eps: float
    group_size: int
    grouping: str
    verifier: str
    arithmetic: Arithmetic = "real"
    """What the network is: the function of its weights over the real numbers, or every program in float32."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = field(default=(), repr=False)
    """Proofs that an attack broke, of the groups certified just now: bugs. Their rows are errors."""

    @property
    def certified(self) -> float:
        """Certified average UAP accuracy: a proved lower bound, in percent of all images."""
        return 100 * sum(row.certified for row in self.rows) / self.images

    @property
    def attacked(self) -> float:
        """What the attack leaves: an upper bound, in percent of all images."""
        return 100 * sum(row.attacked for row in self.rows) / self.images

    @property
    def correct(self) -> float:
        """Clean accuracy in percent of all images."""
        return 100 * sum(row.correct for row in self.rows) / self.images

    def unseen(self, confidence: float = 0.99) -> float:
        """A lower bound, in percent of all inputs like these, with this confidence: if the images were drawn at random
        and the network was neither trained nor chosen with them."""
        return 100 * least_share(sum(row.certified for row in self.rows), self.images, confidence)

    def from_batches(self, confidence: float = 0.99) -> float | None:
        """The same by Zeng et al. (2023) from full groups in the order of the images; None where there are none."""
        full = [row.certified / self.group_size for row in self.rows if len(row.index) == self.group_size]
        return 100 * share_from_batches(full, confidence) if self.grouping == "dataset" and full else None

    @property
    def errors(self) -> int:
        return sum(row.verdict is Verdict.ERROR for row in self.rows)

    def images_by_outcome(self) -> dict[str, int]:
        """Every image once: proved, fooled by the attack, in the gap between them, misclassified, or in error."""
        good = [row for row in self.rows if row.verdict is not Verdict.ERROR]
        bad = sum(len(row.index) for row in self.rows if row.verdict is Verdict.ERROR)
        certified, attacked = sum(r.certified for r in good), sum(r.attacked for r in good)
        correct = sum(row.correct for row in good)
        return {
            "certified": certified,
            "gap": attacked - certified,
            "fooled": correct - attacked,
            "misclassified": self.images - correct - bad,
            "error": bad,
        }
