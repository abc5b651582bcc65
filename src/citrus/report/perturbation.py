"""The universal perturbation itself, what it does to the images of its group, and which classes fall."""

from collections import Counter, defaultdict

from torch import Tensor

from citrus.inputs import format_eps
from citrus.report.certifications import shared_text, size_text
from citrus.report.document import ABSENT, Cell, Picture, Piece, Section, fold, gallery, paragraph, strong, table
from citrus.report.read import Record
from citrus.report.uap import Perturbed, perturbation, png

MOST_IMAGES = 8  # shown of those that the perturbation flips, and as many of those that it does not
MOST_CLASSES = 20


def perturbations(records: list[Record]) -> Section | None:
    """Of every run the perturbation at its own eps that most images share; all others are folded."""
    pieces = [paragraph("A perturbation, and images without and with it; of groups the one that suffers most.")]
    for record in records:
        if record.prefix and record.perturbations:
            pieces.append(paragraph(record.name, kind="heading"))
        for k, p in enumerate(record.drawn):
            shared = shared_text(p.group_size, len(p.labels)) if p.for_all else f"groups of {p.group_size}"
            pieces += [fold(f"At eps {format_eps(p.eps)}, {shared}", *_shown(p))] if k else _shown(p)
    return Section("perturbation", "One perturbation for many images", pieces) if len(pieces) > 1 else None


def _shown(p: Perturbed) -> list[Piece]:
    """The perturbation in both scales, then the images it flips and those it cannot."""
    eps = format_eps(p.eps)
    shared = "with one perturbation for every " + (f"{p.group_size} images" if p.group_size > 1 else "image")
    if p.for_all:
        shared = f"with {shared_text(p.group_size, len(p.labels))}"
    said = paragraph(
        f"Within eps {eps} and {shared}, the attack turns ",
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
    shown = [(record, record.drawn[0]) for record in records if record.perturbations]
    if not shown:
        return None
    columns = [_by_class(p) for _, p in shown]
    names = dict.fromkeys(name for column in columns for name in column)
    most = sorted(names, key=lambda name: -sum(column[name][0] for column in columns))
    rows = [[Cell(name), *(column[name][1] for column in columns)] for name in most[:MOST_CLASSES]]
    header = (
        "Class",
        *(f"{r.name}, eps {format_eps(p.eps)}, N = {size_text(p.group_size, len(p.labels))}" for r, p in shown),
    )
    intro = "How many correctly classified images of a class a universal attack turns wrong, and what most become."
    pieces = [paragraph(intro), table("Classes by the share of images that fall", header, rows)]
    if len(most) > MOST_CLASSES:
        pieces.append(paragraph(f"{MOST_CLASSES} of {len(most)} classes, those that fall most.", kind="note"))
    return Section("classes", "Which classes fall", pieces)


def _by_class(p: Perturbed) -> defaultdict[str, tuple[float, Cell]]:
    """The share of the images of each class that fall, and a cell that says it and what most of them become."""
    found: defaultdict[str, tuple[float, Cell]] = defaultdict(lambda: (0.0, Cell(ABSENT)))
    for label in sorted(set(p.labels.tolist())):
        right = p.right & (p.labels == label)
        falls = right & p.falls
        share = float(falls.sum() / right.sum().clamp(min=1))
        becomes = Counter(p.perturbed[falls].tolist()).most_common(1)
        mostly = f", mostly {p.class_name(becomes[0][0])}" if becomes else ""
        told = f"{int(falls.sum())} of {int(right.sum())}"
        found[p.class_name(label)] = share, Cell(told, f"{100 * share:.1f} %{mostly}")
    return found
