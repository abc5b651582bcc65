"""The universal perturbation itself, what it does to the images of its group, and which classes fall."""

from collections import Counter

from torch import Tensor

from citrus.inputs import format_eps
from citrus.report.document import (
    ABSENT,
    Block,
    Cell,
    Fold,
    Galleries,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    Section,
    Strong,
    Table,
)
from citrus.report.png import perturbation, png
from citrus.report.read import Perturbed, Record

MOST_IMAGES = 8  # shown of those that the perturbation flips, and as many of those that it does not
MOST_CLASSES = 20


def perturbations(records: list[Record]) -> Section | None:
    """Of every run the perturbation at its own eps; those at others are folded."""
    intro = (
        "The group that suffers most: its perturbation, and its images without and with it as the network sees them."
    )
    blocks: list[Block] = []
    for record in records:
        if len(records) > 1 and (record.perturbations or record.pictures):
            blocks.append(Heading(record.name))
        own_first = sorted(record.perturbations, key=lambda p: p.eps != record.eps)
        for p in own_first[:1]:
            blocks += _shown(p)
        for p in own_first[1:]:
            blocks.append(Fold(f"At eps {format_eps(p.eps)}, groups of {p.group_size}", tuple(_shown(p))))
        for stem, picture in record.pictures.items():
            alt = f"Universal perturbation at eps {stem}, and images without and with it, drawn by an older version."
            blocks.append(Galleries((Gallery(f"eps {stem}", ((Picture(picture, alt, ""),),), large=True),)))
    return (
        Section("perturbation", "One perturbation for many images", (Paragraph((intro,)), *blocks)) if blocks else None
    )


def _shown(p: Perturbed) -> list[Block]:
    """The perturbation in both scales, then the images it flips and those it cannot."""
    flips, right = p.falls[p.shown], (p.clean == p.labels)[p.shown]
    eps = format_eps(p.eps)
    said = Paragraph(
        (
            f"Within eps {eps} and with one perturbation for every {p.group_size} images, the attack turns ",
            Strong(f"{int(p.falls.sum())} of {int((p.clean == p.labels).sum())}"),
            " right predictions wrong.",
        )
    )
    scales = (
        (_scaled(p.delta, p.eps, "amplified", f"amplified, full colour is ±{eps}"),),
        (_scaled(p.delta, 1.0, "true scale", "true scale, full colour is ±1"),),
    )
    galleries = [Gallery("The perturbation", scales, large=True)]
    for name, mask in (("Images that it flips", flips), ("Images that it cannot flip", right & ~flips)):
        places = mask.nonzero().flatten().tolist()[:MOST_IMAGES]
        if places:
            galleries.append(Gallery(name, tuple(_pair(p, place) for place in places)))
    return [said, Galleries(tuple(galleries))]


def _scaled(delta: Tensor, largest: float, kind: str, caption: str) -> Picture:
    low, high = float(delta.min()), float(delta.max())
    alt = f"The universal perturbation, {kind}: values from {low:.4f} to {high:.4f}."
    return Picture(png(perturbation(delta, largest)), alt, caption)


def _pair(p: Perturbed, place: int) -> tuple[Picture, Picture]:
    """One image without and with the perturbation, and what the network says to either."""
    number = int(p.shown[place])
    label, before, after = (p.class_name(int(values[number])) for values in (p.labels, p.clean, p.perturbed))
    image = p.images[place]
    return (
        Picture(png(image), f"Test image {number}, class {label}, without it: seen as {before}.", before),
        Picture(
            png(image + p.delta),
            *(f"The same image with the perturbation: seen as {after}.", after),
            wrong=bool(p.falls[number]),
        ),
    )


def classes(records: list[Record]) -> Section | None:
    """Of every class, how many images fall, and to what."""
    shown = [(r, min(r.perturbations, key=lambda p: p.eps != r.eps)) for r in records if r.perturbations]
    if not shown:
        return None
    columns = [_by_class(p) for _, p in shown]
    names = list(dict.fromkeys(name for column in columns for name in column))
    shares = {name: [_share(column.get(name)) for column in columns] for name in names}
    most = sorted(names, key=lambda name: -sum(shares[name]))[:MOST_CLASSES]
    top = max(max(values) for values in shares.values()) or 1.0
    rows = tuple((Cell(name), *(_fallen(column.get(name), top) for column in columns)) for name in most)
    header = ("Class", *(f"{r.name}, eps {format_eps(p.eps)}, N = {p.group_size}" for r, p in shown))
    caption = "Classes by the share of images that fall"
    intro = "How many correctly classified images of a class a universal attack turns wrong, and what most become."
    blocks: list[Block] = [Paragraph((intro,)), Table(caption, header, rows, "shares")]
    if len(names) > MOST_CLASSES:
        blocks.append(Paragraph((f"{MOST_CLASSES} of {len(names)} classes, those that fall most.",), "note"))
    return Section("classes", "Which classes fall", tuple(blocks))


Fallen = tuple[int, int, str]
"""How many of how many fall, and the class that most of them become."""


def _by_class(p: Perturbed) -> dict[str, Fallen]:
    found = {}
    for label in sorted(set(p.labels.tolist())):
        mine = (p.labels == label) & (p.clean == p.labels)
        becomes = Counter(p.perturbed[mine & p.falls].tolist()).most_common(1)
        found[p.class_name(label)] = (
            *(int((mine & p.falls).sum()), int(mine.sum())),
            p.class_name(becomes[0][0]) if becomes else "",
        )
    return found


def _share(fallen: Fallen | None) -> float:
    return fallen[0] / fallen[1] if fallen and fallen[1] else 0.0


def _fallen(fallen: Fallen | None, top: float) -> Cell:
    """`top` is the largest share of all, as wide as a bar can be."""
    if fallen is None:
        return Cell(ABSENT)
    number, whole, becomes = fallen
    share = _share(fallen)
    note = f"{100 * share:.1f} %" + (f", mostly {becomes}" if becomes else "")
    return Cell(f"{number} of {whole}", note, share / top, "fooled")
