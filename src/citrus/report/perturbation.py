"""The universal perturbation itself, what it does to the images of its group, and which classes fall."""

from collections import Counter
from dataclasses import replace

from torch import Tensor

from citrus.inputs import format_eps
from citrus.report.document import Cell, Picture, Piece, Section, fold, gallery, paragraph, side_by_side, strong, table
from citrus.report.png import perturbation, png
from citrus.report.read import Record
from citrus.report.uap import Perturbed

MOST_IMAGES = 8  # shown of those that the perturbation flips, and as many of those that it does not
MOST_CLASSES = 20


def perturbations(records: list[Record]) -> Section | None:
    """Of every run the perturbation at its own eps; those at others are folded."""
    intro = (
        "The group that suffers most: its perturbation, and its images without and with it, as the network sees them."
    )
    pieces = [paragraph(intro)]
    for record in records:
        if record.prefix and record.perturbations:
            pieces.append(paragraph(record.name, kind="heading"))
        for k, p in enumerate(_own_first(record)):
            pieces += [fold(f"At eps {format_eps(p.eps)}, groups of {p.group_size}", *_shown(p))] if k else _shown(p)
    return Section("perturbation", "One perturbation for many images", pieces) if len(pieces) > 1 else None


def _own_first(record: Record) -> list[Perturbed]:
    return sorted(record.perturbations, key=lambda p: p.eps != record.eps)


def _shown(p: Perturbed) -> list[Piece]:
    """The perturbation in both scales, then the images it flips and those it cannot."""
    eps = format_eps(p.eps)
    said = paragraph(
        f"Within eps {eps} and with one perturbation for every {p.group_size} images, the attack turns ",
        strong(f"{int(p.falls.sum())} of {int(p.right.sum())}"),
        " right predictions wrong.",
    )
    amplified = _scaled(p.worst, p.eps, "amplified", f"amplified, full colour is ±{eps}")
    true = _scaled(p.worst, 1.0, "true scale", "true scale, full colour is ±1")
    pieces = [said, gallery("The perturbation", [[amplified], [true]], large=True)]
    for name, mask in (("Images that it flips", p.falls), ("Images that it cannot flip", p.right & ~p.falls)):
        places = mask[p.shown].nonzero().flatten().tolist()[:MOST_IMAGES]
        if places:
            pieces.append(gallery(name, [_pair(p, place) for place in places]))
    return pieces


def _scaled(delta: Tensor, largest: float, kind: str, caption: str) -> Picture:
    low, high = float(delta.min()), float(delta.max())
    alt = f"The universal perturbation, {kind}: values from {low:.4f} to {high:.4f}."
    return Picture(png(perturbation(delta, largest)), alt, caption)


def _pair(p: Perturbed, place: int) -> tuple[Picture, Picture]:
    """One image without and with the perturbation, and what the network says to either."""
    number, image = int(p.shown[place]), p.images[place]
    label, before, after = (p.class_name(int(values[number])) for values in (p.labels, p.clean, p.perturbed))
    told = f"Test image {number}, class {label}, without it: seen as {before}."
    perturbed = f"The same image with the perturbation: seen as {after}."
    return Picture(png(image), told, before), Picture(png(image + p.worst), perturbed, after, bool(p.falls[number]))


def classes(records: list[Record]) -> Section | None:
    """Of every class, how many images fall, and to what."""
    shown = [(record, _own_first(record)[0]) for record in records if record.perturbations]
    if not shown:
        return None
    columns = [_by_class(p) for _, p in shown]
    longest = max(cell.bar or 0.0 for column in columns for cell in column.values()) or 1.0
    columns = [{name: replace(cell, bar=(cell.bar or 0.0) / longest) for name, cell in c.items()} for c in columns]
    rows = side_by_side(columns)
    rows.sort(key=lambda row: -sum(cell.bar or 0.0 for cell in row if isinstance(cell, Cell)))
    header = ("Class", *(f"{r.name}, eps {format_eps(p.eps)}, N = {p.group_size}" for r, p in shown))
    intro = "How many correctly classified images of a class a universal attack turns wrong, and what most become."
    listed = table("Classes by the share of images that fall", header, rows[:MOST_CLASSES], "shares")
    pieces = [paragraph(intro), listed]
    if len(rows) > MOST_CLASSES:
        pieces.append(paragraph(f"{MOST_CLASSES} of {len(rows)} classes, those that fall most.", kind="note"))
    return Section("classes", "Which classes fall", pieces)


def _by_class(p: Perturbed) -> dict[str, Cell]:
    """How many images of each class fall, as a share too, and the class that most of them become."""
    found = {}
    for label in sorted(set(p.labels.tolist())):
        right = p.right & (p.labels == label)
        falls = right & p.falls
        share = float(falls.sum() / right.sum().clamp(min=1))
        becomes = Counter(p.perturbed[falls].tolist()).most_common(1)
        mostly = f", mostly {p.class_name(becomes[0][0])}" if becomes else ""
        told = f"{int(falls.sum())} of {int(right.sum())}"
        found[p.class_name(label)] = Cell(told, f"{100 * share:.1f} %{mostly}", share, "fooled")
    return found
