"""One target class at a time: how many images one perturbation for all can have taken for a class of the attacker's
choice, proved and attacked, as RUN/certify/*-targets.json tells it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citrus.files import parse_object
from citrus.inputs import format_eps
from citrus.report.document import Cell, Piece, Section, paragraph, table
from citrus.report.values import Missing, fits, is_number

MOST_CLASSES = 20


@dataclass(frozen=True)
class ShownTarget:
    """A class, and how many images can be sent to it."""

    label: int
    name: str
    candidates: int
    """Images that are not taken for it anyway."""
    most: int
    """No perturbation has more of them taken for it: proved."""
    attacked: int
    """A perturbation has so many of them taken for it."""


@dataclass(frozen=True)
class ShownTargets:
    eps: float
    images: int
    classes: tuple[ShownTarget, ...]


def read_targets(run: Path, missing: list[Missing]) -> list[ShownTargets]:
    """In the order of their radii; a file that holds something else is told and left out."""
    found = []
    for path in (*sorted(run.glob("certify/*-targets.json")), *sorted(run.glob("*-targets.json"))):
        values = parse_object(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
        targets = _targets(values or {})
        if targets is None:
            missing.append(Missing(f"{path.relative_to(run)} is damaged and left out."))
        else:
            found.append(targets)
    return sorted(found, key=lambda targets: (targets.eps, targets.images))


def _targets(values: dict[str, Any]) -> ShownTargets | None:
    listed = values.get("classes")
    if not fits(values, "eps", "images", "classes") or not isinstance(listed, list):
        return None
    classes = [_target(one, values["images"]) for one in listed]
    known = tuple(one for one in classes if one is not None)
    sound = 0 <= values["eps"] <= 1 and is_number(values.get("seconds", 0)) and len(known) == len(classes) > 0
    return ShownTargets(values["eps"], values["images"], known) if sound else None


def _target(values: Any, images: int) -> ShownTarget | None:
    if not isinstance(values, dict):
        return None
    counts: list[Any] = [values.get(name) for name in ("class", "attacked", "most", "candidates")]
    if not all(type(count) is int for count in counts) or not isinstance(values.get("name"), str):
        return None
    label, attacked, most, candidates = counts
    if not (0 <= label < 1 << 53 and 0 <= attacked <= most <= candidates <= images):
        return None
    return ShownTarget(label, values["name"], candidates, most, attacked)


def targets_section(named: list[tuple[str, list[ShownTargets]]]) -> Section | None:
    """Of every run, by what stands before its tables, one table for each radius."""
    pieces: list[Piece] = []
    for prefix, found in named:
        for targets in found:
            pieces.append(_table(prefix, targets))
            if len(targets.classes) > MOST_CLASSES:
                said = f"{MOST_CLASSES} of {len(targets.classes)} classes, those that most images can be sent to."
                pieces.append(paragraph(said, kind="note"))
    intro = paragraph(
        "An attacker may want one answer for everything. For each class: how many of the images that are not taken for "
        "it anyway one perturbation for all sends there, at most (proved) and at least (an attack did that)."
    )
    return Section("targets", "One target class at a time", [intro, *pieces]) if pieces else None


def _table(prefix: str, targets: ShownTargets) -> Piece:
    """Worst first."""

    def share(count: int) -> Cell:
        return Cell(str(count), f"{100 * count / targets.images:.1f} %")

    worst = sorted(targets.classes, key=lambda one: (-one.most, -one.attacked, one.label))[:MOST_CLASSES]
    rows = [[Cell(one.name), share(one.candidates), share(one.most), share(one.attacked)] for one in worst]
    header = ("Target class", "Not taken for it anyway", "Sent to it, at most", "Sent to it, at least")
    caption = f"{prefix}eps {format_eps(targets.eps)}, images and percent of all {targets.images}"
    return table(caption, header, rows)
