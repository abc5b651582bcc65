"""Accuracy against eps and against group size, all certifications, and what each stage of the cascade proved."""

from collections.abc import Sequence

from citrus.inputs import format_eps
from citrus.report.charts import Line, bar_chart, line_chart, linear_axis, series, value_axis
from citrus.report.document import Cell, Cells, Piece, Section, code, figure, fold, paragraph, table
from citrus.report.read import PERCENTAGES, Certified, Record

MOST_LINES = 6
MOST_BARS = 8
MOST_ROWS = 8  # of a table that is not folded
STAGES = {
    "interval": "intervals (IBP)",
    "crown": "linear bounds (CROWN)",
    "alpha": "optimised slopes",
    "search": "exact search over the group",
    "joint": "joint refinement of the group",
    "whole": "one dual problem for the whole group",
}
OUTCOMES = {
    "certified": "proved right under every shared perturbation",
    "gap": "open: neither proved nor attacked",
    "fooled": "falls to a universal attack",
    "misclassified": "wrong without any perturbation",
    "error": "error during certification",
}


def robustness(records: list[Record]) -> Section | None:
    pieces = [chart for axis in ("eps", "N") if (chart := _chart(records, axis))]
    certified = [(record, c) for record in records for c in record.certifications]
    if certified and len(pieces) < 2:
        size, eps = code("citrus certify RUN --group-size 20"), code("citrus certify RUN --eps 0.05")
        pieces.append(paragraph("Certify with other settings to see a curve: ", size, " or ", eps, ".", kind="note"))
    if certified:
        listed = _certifications(certified)
        pieces.append(listed if len(certified) <= MOST_ROWS else fold(f"All {len(certified)} certifications", listed))
    if any(record.attacks for record in records):
        pieces.append(_attacks(records))
    return Section("robustness", "Against eps and group size", pieces) if pieces else None


def _chart(records: list[Record], axis: str) -> Piece | None:
    """What is proved and what the attack leaves, over eps or over N; of several runs one curve each."""
    several, lines = len(records) > 1, []
    curves = [(k, c) for k, r in enumerate(records) for c in _curves(r, axis)[: 1 if several else MOST_LINES]]
    labels = _apart([names for _, (names, _) in curves], always=(0,) if several else ())
    for i, ((k, (_, values)), label) in enumerate(zip(curves, labels, strict=True)):
        run = series(k, label) if several else series(i, label if len(curves) > 1 else "")
        certified = [(x, proved) for x, proved, _ in values]
        attacked = [(x, left) for x, _, left in values if left is not None]
        lines += [Line(f"{label}, certified", certified, run), Line(f"{label}, attacked", attacked, run, dashed=True)]
    if not lines:
        return None

    def tick(x: float) -> str:
        return format_eps(x) if axis == "eps" and x else f"{x:g}"

    points = [point for line in lines for point in line.points]
    label = "radius eps" if axis == "eps" else "images that share one perturbation, N"
    across = value_axis(label, [(x, tick(x)) for x, _ in points], logarithmic=axis == "N")
    up = linear_axis("percent of test images", (y for _, y in points), span=4)
    told = [f"{line.label}: " + ", ".join(f"{y:.2f} at {axis} {tick(x)}" for x, y in line.points) for line in lines]
    strokes = ("proved (lower bound)", "left by the attack (upper bound)")
    bands = list(zip(lines[::2], lines[1::2], strict=True))
    title = f"Accuracy against the {'radius eps' if axis == 'eps' else 'group size N'}"
    return figure(line_chart(f"curve-{axis}", title, "; ".join(told), (across, up), lines, strokes, bands))


Knot = tuple[float, float, float | None]
"""A place on the axis, percent certified there, and percent that the attack leaves."""


def _curves(record: Record, axis: str) -> list[tuple[tuple[str, ...], list[Knot]]]:
    """Of finished certifications that differ in eps only, or in N only: all curves of several, or else one."""
    alike: dict[tuple[str, ...], list[Certified]] = {}
    for c in record.certifications:  # sorted by eps and by group size
        fixed = f"N = {c.group_size}" if axis == "eps" else f"eps {format_eps(c.eps)}"
        if not c.so_far:
            alike.setdefault((record.name, fixed, c.grouping, c.verifier, f"{c.images} images"), []).append(c)
    ranked = sorted(alike.items(), key=lambda item: (-len(item[1]), record.headline not in item[1]))
    several = sum(len(members) > 1 for members in alike.values())
    curves = [(names, _knots(record, members, axis)) for names, members in ranked]
    return curves[:several] or [curve for curve in curves if len(curve[1]) > 1][:1]


def _knots(record: Record, members: list[Certified], axis: str) -> list[Knot]:
    """From where they are known without a certification on."""
    known = [(c.eps if axis == "eps" else c.group_size, c.certified, c.attacked) for c in members]
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


def _apart(names: Sequence[tuple[str, ...]], always: tuple[int, ...] = ()) -> list[str]:
    """Of several names, each made of parts, the parts that set them apart."""
    differing = [place for place, values in enumerate(zip(*names, strict=True)) if len(set(values)) > 1]
    shown = sorted({*differing, *always}) or [1]
    return [", ".join(name[place] for place in shown if name[place]) for name in names]


def _certifications(certified: list[tuple[Record, Certified]]) -> Piece:
    rows: list[Cells] = []
    for record, c in certified:
        state = f" · {c.so_far}" if c.so_far else ""
        name = Cell(f"{record.prefix}{c.setting}", f"{c.verifier}, groups: {c.grouping}{state}")
        percent = [f"{value:.2f}" for value in (c.correct, c.certified, c.attacked)]
        rows.append([name, str(c.images), *percent, f"{c.seconds:.1f}"])
    header = ("Certification", "Images", "Clean", "Certified", "Attacked", "Seconds")
    return table("All certifications, percent of test images", header, rows)


def _attacks(records: list[Record]) -> Piece:
    """What `citrus attack` measured: upper bounds without proofs."""
    rows: list[Cells] = []
    for record in records:
        for found in record.attacks:
            said = f"{record.prefix}eps {format_eps(found['eps'])}"
            percent = [f"{found[name]:.2f}" for name in PERCENTAGES]
            on = f"N = {found['group_size']}, first {found['attacked_images']} images"
            rows.append([Cell(said, on), *percent])
    header = ("Attack", "Clean", "Certified (IBP)", "One by one (PGD)", "Universal")
    return table("All attacks, percent of test images", header, rows)


def cascade(records: list[Record]) -> Section | None:
    """Which stage settled how many images; of several runs only in the certifications they are judged by."""
    every = [(record, c) for record in records for c in record.certifications if c.stages]
    shown = [(record, c) for record, c in every if len(records) == 1 or c == record.headline][:MOST_BARS]
    if not shown:
        return None
    labels = _apart([_names(record, c) for record, c in shown], always=(1, 2, 5))
    known = {name: said for name, said in (STAGES | OUTCOMES).items() if any(c.settled.get(name) for _, c in shown)}
    bars = [(label, c.settled) for label, (_, c) in zip(labels, shown, strict=True)]
    rows = [[Cell(said), *(_share(name, c) for _, c in shown)] for name, said in known.items()]
    said = "Cheap proofs come first; each stage sees only what those before it left open, so its share is what it adds."
    listed = table("Images by the stage that settled them", ["Stage", *labels], rows)
    pieces = [paragraph(said), figure(bar_chart("Share of all images", bars, known), wide=True), listed]
    return Section("cascade", "Which proof did the work", pieces)


def _names(record: Record, c: Certified) -> tuple[str, ...]:
    so_far = "so far" if c.so_far else ""
    return record.name, f"eps {format_eps(c.eps)}", f"N = {c.group_size}", c.verifier, c.grouping, so_far


def _share(name: str, c: Certified) -> Cell:
    """The attack is a stage too; what it settles are the images that it fools."""
    images, seconds = c.settled.get(name, 0), c.stage_seconds.get("attack" if name == "fooled" else name)
    note = "" if seconds is None else f", {seconds:.1f} s"
    return Cell(str(images), f"{100 * images / c.images:.1f} %{note}")
