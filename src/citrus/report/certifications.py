"""What `citrus certify` wrote: VERIFIER-EPS-nN-GROUPING.jsonl, one row per group, and a .json summary at its end."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citrus.certify.result import ALONE, Certification, GroupResult
from citrus.certify.run_folder import read_rows
from citrus.errors import CitrusError
from citrus.inputs import format_eps
from citrus.report.files import count, number, read_object, text


@dataclass(frozen=True)
class Certified(Certification):
    """A certification as its rows tell it; of an unfinished one `images` counts those that were looked at so far."""

    file: str = ""
    asked: int = 0
    """Images that were asked for."""
    seconds: float = 0.0
    finished: bool = False
    broken: int = 0
    """Lines that cannot be read."""

    @property
    def setting(self) -> str:
        return f"eps {format_eps(self.eps)}, N = {self.group_size}"

    @property
    def stages(self) -> Counter[str]:
        """Images by the stage that proved them."""
        return sum((Counter(row.stages) for row in self.rows), Counter())

    @property
    def settled(self) -> dict[str, int]:
        """Every image once: by the stage that proved it, or by what became of it."""
        others = {name: images for name, images in self.images_by_outcome().items() if name != "certified"}
        return {**self.stages, **others}

    @property
    def alone(self) -> float:
        """Percent of images that are proved one by one, without their group."""
        return min(100 * sum(self.stages[name] for name in ALONE) / self.images, self.certified)


def read_certifications(run: Path) -> tuple[list[Certified], list[str]]:
    """All certifications of a run (or of a folder that holds nothing else), and the files that cannot be used."""
    found, unusable = [], []
    for path in (*sorted(run.glob("certify/*.jsonl")), *sorted(run.glob("*.jsonl"))):
        try:
            asked, rows, broken = read_rows(path)
        except CitrusError:
            asked, rows, broken = {}, [], 0
        result = _certified(path, asked, rows, broken)
        if result is None and path.parent != run:  # beside a run lies something else
            unusable.append(path.name)
        elif result and result.images:
            found.append(result)
    return sorted(found, key=lambda c: (c.eps, c.group_size, c.verifier, c.grouping)), unusable


def _certified(path: Path, asked: dict[str, Any], rows: list[GroupResult], broken: int) -> Certified | None:
    summary = read_object(path.with_suffix(".json"))
    eps, size, images = number(asked, "eps"), count(asked, "group_size"), count(asked, "images")
    if eps is None or not size or images is None or not 0 <= eps <= 1:
        return None
    times = (summary or {}).get("stage_seconds")
    known = {name: number(times, name) for name in (times if isinstance(times, dict) else ())}
    return Certified(
        rows=tuple(rows),
        images=_seen(rows, asked, finished=summary is not None),
        eps=eps,
        group_size=size,
        grouping=text(asked, "grouping"),
        verifier=text(asked, "verifier"),
        stage_seconds={name: value for name, value in known.items() if value is not None},
        file=path.stem,
        asked=images,
        seconds=number(summary, "seconds") or sum(row.seconds for row in rows),
        finished=summary is not None,
        broken=broken,
    )


def _seen(rows: list[GroupResult], asked: dict[str, Any], finished: bool) -> int:
    """Images looked at so far.

    Where misclassified images were dropped first no group holds them: all up to the last that a group holds count.
    """
    if text(asked, "grouping") != "correct":
        return sum(len(row.index) for row in rows)
    if finished:
        return count(asked, "images") or 0
    return max((max(row.index) + 1 for row in rows if row.index), default=0)
