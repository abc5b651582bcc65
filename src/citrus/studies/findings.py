"""Does what the paper found show in our numbers? Answered by them, not by us: its claims are in published.json."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from citrus.studies.engine import StudyResult
from citrus.studies.rows import Row

Answer = Literal["yes", "no", "unclear", "not measured"]
Noise = Callable[[StudyResult, StudyResult], float]
CLEAR_TREND = 0.5  # of Kendall's rank correlation


@dataclass(frozen=True)
class Finding:
    """A statement of the paper, whether it holds here, and the numbers that say so."""

    claim: str
    answer: Answer
    evidence: str


def decide(claim: Row, results: Sequence[StudyResult], setting: str = "") -> Finding:
    """What results say about a claim; nothing where one is missing."""
    text = claim["claim"].format(setting=setting)
    if any(result.error for result in results):
        return Finding(text, "not measured", "a run is missing")
    return Finding(text, *JUDGES[claim["is"]](claim, results))


def value_of(claim: Row, result: StudyResult) -> float:
    return float(result.proofs[0]["certified"] if claim["of"] == "certified" else result.run[claim["of"]])


# --------------------------------------------------------------------------------------------------------------- judges


def extreme(claim: Row, results: Sequence[StudyResult]) -> tuple[Answer, str]:
    """CITRUS (or else the first) has the most, or at most `slack` less, or the least; the noise decides nothing."""
    most, noise = claim["is"] == "most", NOISE[claim["of"]]
    first, others = _first(results)
    rival = (max if most else min)(others, key=lambda result: value_of(claim, result))
    ours, theirs, least = value_of(claim, first), value_of(claim, rival), noise(first, rival)
    lead = ours + claim.get("slack", 0) - theirs if most else theirs - ours
    names = [result.name.rpartition("/")[2] for result in (first, rival)]
    evidence = f"{names[0]} {ours:.2f}, nearest other {names[1]} {theirs:.2f}; two standard errors are {least:.2f}"
    return "unclear" if abs(lead) <= least else "yes" if lead > 0 else "no", evidence


def trend(claim: Row, results: Sequence[StudyResult]) -> tuple[Answer, str]:
    """Most pairs of values are ordered as claimed; values within the noise of each other decide nothing."""
    x, y = [result.run[claim["along"]] for result in results], [value_of(claim, result) for result in results]
    correlation = kendall(x, y)
    noise = NOISE[claim["of"]](results[y.index(min(y))], results[y.index(max(y))])
    evidence = (
        f"rank correlation {correlation:+.2f} over {len(x)} values, from {y[0]:.2f} to {y[-1]:.2f}; two standard "
        f"errors are {noise:.2f}"
    )
    if abs(correlation) < CLEAR_TREND or max(y) - min(y) <= noise:
        return "unclear", evidence
    return "yes" if (correlation > 0) == (claim["is"] == "rising") else "no", evidence


def below(claim: Row, results: Sequence[StudyResult]) -> tuple[Answer, str]:
    """All rivals of CITRUS have less than a value."""
    most = max(value_of(claim, result) for result in _first(results)[1])
    return "yes" if most < claim["value"] else "no", f"at most {most:.2f}"


def times(claim: Row, results: Sequence[StudyResult]) -> tuple[Answer, str]:
    """CITRUS has at least so many times as much as one rival."""
    first, others = _first(results)
    rival = next(result for result in others if result.run["method"] == claim["method"])
    ours, theirs = value_of(claim, first), value_of(claim, rival)
    ratio = ours / theirs if theirs else math.inf
    return "yes" if ratio >= claim["value"] else "no", f"{ratio:.2f} times: {ours:.0f} s and {theirs:.0f} s"


def _first(results: Sequence[StudyResult]) -> tuple[StudyResult, list[StudyResult]]:
    """What a claim is about, and the others: CITRUS, or the first where all are."""
    first = min(results, key=lambda result: result.run["method"] != "citrus")
    return first, [result for result in results if result is not first]


Judge = Callable[[Row, Sequence[StudyResult]], tuple[Answer, str]]
JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("most", "least"), extreme),
    **dict.fromkeys(("rising", "falling"), trend),
    "below": below,
    "times": times,
}


# ---------------------------------------------------------------------------------------------------------- statistics


def kendall(x: Sequence[float], y: Sequence[float]) -> float:
    """Pairs in the same order less pairs in opposite order, as a share of all pairs; 0 for fewer than two points."""
    pairs = [(i, j) for j in range(len(x)) for i in range(j)]
    signs = [math.copysign(1, d) if (d := (x[i] - x[j]) * (y[i] - y[j])) else 0.0 for i, j in pairs]
    return sum(signs) / len(pairs) if pairs else 0.0


def clean_noise(a: StudyResult, b: StudyResult) -> float:
    """Two standard errors of the difference of two clean accuracies, in points."""
    shares = [(result.run["clean"] / 100, result.run["images"]) for result in (a, b)]
    return 200 * math.sqrt(sum(p * (1 - p) / n for p, n in shares))


def certified_noise(a: StudyResult, b: StudyResult) -> float:
    """Two standard errors of the difference of two certified accuracies, in points, from how groups differ.

    Both networks meet the same groups, so that what makes a group hard for both does not count.
    """
    difference = [x - y for x, y in zip(a.proofs[0]["groups"], b.proofs[0]["groups"], strict=True)]
    count = len(difference)
    if count < 2:
        return math.inf
    mean = sum(difference) / count
    deviation = math.sqrt(sum((d - mean) ** 2 for d in difference) / (count - 1))
    return 200 * deviation / math.sqrt(count) / a.proofs[0]["group_size"]


NOISE: dict[str, Noise] = {"clean": clean_noise, "certified": certified_noise}
