"""Certified and attacked accuracy over eps, and over the number of images that share one perturbation: from one by one
over groups to everybody."""

from collections.abc import Sequence
from dataclasses import dataclass

from citrus.inputs import format_eps
from citrus.report.certifications import Certified
from citrus.report.charts import Line, line_chart, linear_axis, series, value_axis
from citrus.report.document import Piece, figure
from citrus.report.read import Record

MOST_LINES = 6
Knot = tuple[float, float, float | None]
"""A place on the axis, percent certified there, and percent that the attack leaves."""


@dataclass(frozen=True)
class Curve:
    """Finished certifications that differ in eps only, or in N only."""

    names: tuple[str, ...]
    """What they are alike in."""
    knots: list[Knot]
    images: int
    certifications: int
    of_headline: bool
    """Whether the certification that the run is judged by is one of them."""

    @property
    def for_all(self) -> bool:
        """Whether a curve over N ends where all images share one perturbation."""
        return any(place == self.images for place, _, _ in self.knots)


def curves(records: list[Record], axis: str) -> Piece | None:
    """What is proved and what the attack leaves, over eps or over N; of several runs one curve each."""
    several, found = len(records) > 1, list[tuple[int, Curve]]()
    for k, record in enumerate(records):
        every = _curves(record, axis)
        measured = [curve for curve in every if curve.certifications > 1]
        shown = measured or [curve for curve in every if len(curve.knots) > 1][:1]
        found += [(k, curve) for curve in shown[: 1 if several else MOST_LINES]]
    title = f"Accuracy against the {'radius eps' if axis == 'eps' else 'group size N'}"
    return _chart(found, several, axis, f"curve-{axis}", title)


def headline_curve(records: list[Record]) -> Piece | None:
    """From images one by one to all images at once, of the certifications that the runs are judged by."""
    if not any(record.headline and record.headline.for_all for record in records):
        return None
    every = [(k, curve) for k, record in enumerate(records) for curve in _curves(record, "N")]
    found = [(k, curve) for k, curve in every if curve.of_headline and len(curve.knots) > 1]
    title = "What stays right as more and more images share one perturbation"
    return _chart(found, len(records) > 1, "N", "curve-headline", title)


def _curves(record: Record, axis: str) -> list[Curve]:
    """Of the most certifications first."""
    alike: dict[tuple[str, ...], list[Certified]] = {}
    for c in record.certifications:  # sorted by eps and by group size
        fixed = c.size if axis == "eps" else f"eps {format_eps(c.eps)}"
        if not c.so_far:
            names = (record.name, fixed, c.grouping, c.verifier, f"{c.images} images", f"{c.arithmetic} arithmetic")
            alike.setdefault(names, []).append(c)
    found = [
        Curve(names, _knots(record, members, axis), members[0].asked_images, len(members), record.headline in members)
        for names, members in alike.items()
    ]
    return sorted(found, key=lambda curve: (-curve.certifications, not curve.of_headline))


def _knots(record: Record, members: list[Certified], axis: str) -> list[Knot]:
    """From where they are known without a certification on."""
    by_place = {c.eps if axis == "eps" else c.shared: c for c in members}
    known = [(place, c.certified, c.attacked) for place, c in by_place.items()]
    first = members[0]
    if axis == "eps" and first.eps > 0:  # nothing is perturbed: the clean accuracy
        return [(0.0, first.correct, first.correct), *known]
    if axis == "N" and first.group_size > 1:  # ordinary certification: the cascade's single-image proofs tell
        return [(1.0, first.alone, _one_by_one(record, first)), *known]
    return [*known]


def _one_by_one(record: Record, c: Certified) -> float | None:
    """What is left of the same images one by one: a shared perturbation that fools is an attack, too."""
    eps, images, pgd = (record.summary.get(name) for name in ("eps", "attacked_images", "pgd"))
    same = (eps, images) == (c.eps, c.images) and not record.config.get("clip")
    return min(pgd, c.attacked) if pgd is not None and same else None


def _chart(found: list[tuple[int, Curve]], several: bool, axis: str, anchor: str, title: str) -> Piece | None:
    """Curves with the numbers of their runs; certified below, attacked above, and what is open between them."""
    lines: list[Line] = []
    labels = apart([curve.names for _, curve in found], always=(0,) if several else ())
    for i, ((k, curve), label) in enumerate(zip(found, labels, strict=True)):
        run = series(k, label) if several else series(i, label if len(found) > 1 else "")
        certified = [(x, proved) for x, proved, _ in curve.knots]
        attacked = [(x, left) for x, _, left in curve.knots if left is not None]
        lines += [Line(f"{label}, certified", certified, run), Line(f"{label}, attacked", attacked, run, dashed=True)]
    if not lines:
        return None
    drawn, by_eps = [curve for _, curve in found], axis == "eps"
    names = _radii(drawn) if by_eps else _sizes(drawn)
    label = "radius eps" if by_eps else "images that share one perturbation, N"
    across = value_axis(label, list(names.items()), logarithmic=not by_eps)
    up = linear_axis("percent of test images", (y for line in lines for _, y in line.points), span=4)
    at = "at eps " if by_eps else "at N = "
    told = [f"{line.label}: " + ", ".join(f"{y:.2f} {at}{names[x]}" for x, y in line.points) for line in lines]
    strokes = ("proved (lower bound)", "left by the attack (upper bound)")
    bands = list(zip(lines[::2], lines[1::2], strict=True))
    caption = _caption(drawn, by_eps)
    return figure(line_chart(anchor, title, "; ".join(told), (across, up), lines, strokes, bands, caption))


def _caption(drawn: list[Curve], by_eps: bool) -> str:
    """What the reader sees, in one sentence."""
    fixed = {curve.names[1] for curve in drawn}
    told = "from no perturbation at the left to strong ones at the right" if by_eps else _from_one_to_all(drawn)
    told = f"{fixed.pop()}: {told}" if len(fixed) == 1 else f"{told[0].upper()}{told[1:]}"
    return f"{told}; the truth lies between the solid and the dashed line."


def _from_one_to_all(drawn: list[Curve]) -> str:
    parts = {
        "at the left every image meets a perturbation of its own (one by one)": 1 in _sizes(drawn),
        "then groups share one": any(x not in (1, c.images) for c in drawn for x, _, _ in c.knots),
        "at the right end everybody meets the same": any(c.for_all for c in drawn),
    }
    return ", ".join(part for part, there in parts.items() if there)


def _radii(drawn: list[Curve]) -> dict[float, str]:
    return {x: format_eps(x) if x else "0" for curve in drawn for x, _, _ in curve.knots}


def _sizes(drawn: list[Curve]) -> dict[float, str]:
    """Group sizes by what they are called; curves over different images end at all of their own."""
    known = {x for curve in drawn for x, _, _ in curve.knots}
    ends = {x for x in known if all(x == c.images for c in drawn if any(x == knot[0] for knot in c.knots))}
    all_ = "all" if len(ends) == 1 else "all {:,g}"
    return {x: all_.format(x) if x in ends else f"{x:,g}" for x in known}


def apart(names: Sequence[tuple[str, ...]], always: tuple[int, ...] = ()) -> list[str]:
    """Of several names, each made of parts, the parts that set them apart."""
    differing = [place for place, values in enumerate(zip(*names, strict=True)) if len(set(values)) > 1]
    shown = sorted({*differing, *always}) or [1]
    return [", ".join(name[place] for place in shown if name[place]) for name in names]
