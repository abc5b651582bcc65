"""What `citrus certify` wrote: VERIFIER-EPS-nN-GROUPING.jsonl, one row per group, and a .json summary at its end."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citrus.certify.result import Certification, GroupResult, Verdict
from citrus.report.files import count, counts, number, numbers, read_lines, read_object, text

ALONE = ("interval", "crown", "alpha")
"""Stages that prove one image at a time; all others need the group."""


@dataclass(frozen=True)
class Certified:
    """One certification: percentages of `images` test images, and every image once by outcome."""

    file: str
    eps: float
    group_size: int
    grouping: str
    verifier: str
    data: str
    asked: int
    """Images that were asked for; of an unfinished certification `images` counts those looked at so far."""
    images: int
    correct: float
    certified: float
    attacked: float
    outcomes: dict[str, int]
    stages: dict[str, int] = field(default_factory=dict)
    """Images by the stage that proved them."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    finished: bool = True
    broken_lines: int = 0

    @property
    def alone(self) -> float | None:
        """Percent of images that are proved one by one, without their group; None where no rows tell."""
        proved = sum(self.stages.get(name, 0) for name in ALONE)
        return min(100 * proved / self.images, self.certified) if self.stages else None


def read_certifications(run: Path) -> tuple[list[Certified], list[str]]:
    """All certifications of a run (or of a folder that holds nothing else), and the files that cannot be used."""
    stems = {
        path.with_suffix("")
        for folder in (run / "certify", run)
        for suffix in (".jsonl", ".json")
        for path in sorted(folder.glob(f"*{suffix}"))
        if folder != run or _is_certification(path)
    }
    found, unusable = [], []
    for stem in sorted(stems):
        result = _read(stem)
        if result is None:
            unusable.append(stem.name)
        elif result.images:
            found.append(result)
    found.sort(key=lambda c: (c.eps, c.group_size, c.verifier, c.grouping))
    return found, unusable


def _is_certification(path: Path) -> bool:
    first = read_object(path) if path.suffix == ".json" else next(iter(read_lines(path)[0]), None)
    return first is not None and {"eps", "verifier", "grouping", "group_size"} <= first.keys()


def _read(stem: Path) -> Certified | None:
    summary = read_object(stem.parent / f"{stem.name}.json")
    lines, broken = read_lines(stem.parent / f"{stem.name}.jsonl")
    asked = summary or (lines[0] if lines and "group" not in lines[0] else {})
    eps, size = number(asked, "eps"), count(asked, "group_size")
    if eps is None or size is None or not 0 <= eps <= 1 or size < 1:
        return None
    by_group = {row.group: row for row in map(_row, lines) if row is not None}  # the last one counts
    rows = tuple(row for _, row in sorted(by_group.items()))
    stages: Counter[str] = Counter()
    for row in rows:
        stages.update(row.stages)
    # Before version 0.1.0 was finished the summary's "images" were the outcomes.
    outcomes = (counts(summary, "outcomes") or counts(summary, "images")) if summary else {}
    total = count(asked, "images") or sum(outcomes.values())
    grouping = text(asked, "grouping")
    seen = total if summary else _seen(rows, grouping)
    so_far = Certification(rows, max(seen, 1), eps, size, grouping, text(asked, "verifier"))
    percent = {name: number(summary or {}, name) for name in ("correct", "certified", "attacked")}
    return Certified(
        file=stem.name,
        eps=eps,
        group_size=size,
        grouping=grouping,
        verifier=text(asked, "verifier"),
        data=text(asked, "data"),
        asked=total,
        images=seen,
        **{name: getattr(so_far, name) if value is None else value for name, value in percent.items()},
        outcomes=outcomes or so_far.images_by_outcome(),
        stages=dict(stages),
        stage_seconds=numbers(asked, "stage_seconds"),
        seconds=number(asked, "seconds") if summary else round(sum(row.seconds for row in rows), 2),
        finished=summary is not None,
        broken_lines=broken,
    )


def _seen(rows: tuple[GroupResult, ...], grouping: str) -> int:
    """Images looked at so far: with misclassified ones dropped first, all up to the last that a group holds."""
    if grouping == "correct":
        return max((max(row.index) + 1 for row in rows if row.index), default=0)
    return sum(len(row.index) for row in rows)


def _row(values: dict[str, Any]) -> GroupResult | None:
    index = values.get("index")
    whole = {name: count(values, name) for name in ("group", "correct", "certified", "attacked")}
    group, correct, certified, attacked = whole.values()
    if group is None or correct is None or certified is None or attacked is None or not isinstance(index, list):
        return None
    if not all(isinstance(place, int) and place >= 0 for place in index) or text(values, "verdict") not in list(
        Verdict
    ):
        return None
    seconds = number(values, "seconds") or 0.0
    verdict = Verdict(text(values, "verdict"))
    stages = counts(values, "stages")
    return GroupResult(
        group, tuple(index), correct, certified, attacked, verdict, stages, seconds, text(values, "note")
    )
