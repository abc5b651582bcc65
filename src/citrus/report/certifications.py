"""What `citrus certify` and training wrote: rows of groups, and how many images share one perturbation."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citrus.certify.result import ALONE, Certification, GroupResult
from citrus.certify.run_folder import read_rows
from citrus.inputs import format_eps
from citrus.report.values import Missing, fits, is_number, read_object, tell_broken


def size_text(group_size: int, images: int) -> str:
    """How many images share one perturbation, after "N = "; all of them are called so."""
    return f"all ({images})" if group_size >= images > 1 else str(group_size)


def shared_text(group_size: int, images: int) -> str:
    """The same where it stands alone."""
    return f"one perturbation for all {images}" if group_size >= images > 1 else f"N = {group_size}"


@dataclass(frozen=True)
class Certified(Certification):
    """A certification as its rows tell it; of an unfinished one `images` counts those that were looked at so far."""

    asked_images: int = 0
    seconds: float = 0.0
    so_far: str = ""
    """Of an unfinished one, how many images of how many were looked at."""
    other_inputs: float | None = None
    """At least so many percent of inputs that nobody has seen stay right, with a confidence of 99 %."""
    used: str = ""
    """What the images were used for before, so that nothing follows about other inputs."""

    @property
    def for_all(self) -> bool:
        """Whether all images share one perturbation: as whoever prints one meets them."""
        return self.group_size >= self.asked_images > 1

    @property
    def shared(self) -> int:
        """How many images share a perturbation; more than there are cannot."""
        return min(self.group_size, max(1, self.asked_images))

    @property
    def size(self) -> str:
        return f"N = {size_text(self.group_size, self.asked_images)}"

    @property
    def setting(self) -> str:
        return ", ".join(filter(None, (f"eps {format_eps(self.eps)}", self.size, self.floats)))

    @property
    def floats(self) -> str:
        """The arithmetic, where it is not that of real numbers."""
        return "" if self.arithmetic == "real" else self.arithmetic

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


def read_certifications(run: Path, missing: list[Missing]) -> list[Certified]:
    """What `citrus certify` wrote of a run, or into a folder that holds nothing else: VERIFIER-EPS-nN-GROUPING.jsonl,
    one row per group, and a .json summary at its end."""
    found = []
    for path in (*sorted(run.glob("certify/*.jsonl")), *sorted(run.glob("*.jsonl"))):
        asked, rows, broken = read_rows(path)
        if fits(asked, "eps", "group_size", "images", "grouping", "verifier"):
            tell_broken(path.name, broken, missing)
            summary = read_object(path.with_suffix(".json"), missing)
            result = _certified(asked, rows, summary)
            if result.so_far:
                missing.append(Missing(f"{path.stem} is not finished: {result.so_far}."))
            if summary.get("unseen") is not None and result.other_inputs is None:
                missing.append(Missing(f"{path.stem}.json says of other inputs what does not follow; left out."))
            if result.images:
                found.append(result)
        elif path.parent != run:  # beside a run lies something else
            missing.append(Missing(f"certify/{path.name} is damaged and left out."))
    return sorted(found, key=lambda c: (c.eps, c.group_size, c.verifier, c.grouping))


def _certified(asked: dict[str, Any], rows: list[GroupResult], summary: dict[str, Any]) -> Certified:
    seen = sum(len(row.index) for row in rows)
    if asked["grouping"] != "dataset":  # no group holds a misclassified image: all up to the last of a group count
        last = max((place for row in rows for place in row.index), default=-1)
        seen = asked["images"] if summary else last + 1
    return Certified(
        rows=tuple(rows),
        images=seen,
        **{name: asked[name] for name in ("eps", "group_size", "grouping", "verifier")},
        arithmetic=asked.get("arithmetic", "real"),
        stage_seconds={name: x for name, x in summary.get("stage_seconds", {}).items() if isinstance(x, float)},
        asked_images=asked["images"],
        seconds=summary.get("seconds", sum(row.seconds for row in rows)),
        so_far="" if summary else f"{seen} of {asked['images']} images so far",
        other_inputs=_other_inputs(summary, sum(row.certified for row in rows), seen),
        used=summary.get("used", ""),
    )


def _other_inputs(summary: dict[str, Any], certified: int, images: int) -> float | None:
    """What the summary says of inputs that nobody has seen, if it can follow from what is proved of seen ones."""
    unseen = summary.get("unseen")
    if unseen is None or not is_number(unseen) or summary.get("used") or not images:
        return None
    return float(unseen) if 0 <= unseen <= 100 * certified / images else None
