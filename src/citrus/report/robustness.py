"""Accuracy against eps and against group size, all certifications, and what each stage of the cascade proved."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from citrus.inputs import format_eps
from citrus.report.certifications import ALONE, Certified
from citrus.report.charts import Line, Point, line_chart, linear_axis, series_key, value_axis
from citrus.report.document import (
    ABSENT,
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    Figure,
    Figures,
    Fold,
    Key,
    Paragraph,
    Section,
    Table,
    Words,
)
from citrus.report.overview import headline_certification
from citrus.report.read import Record

STAGES = (*ALONE, "search", "joint")
OUTCOMES = ("gap", "fooled", "misclassified", "error")
MOST_LINES = 6
MOST_BARS = 8
MOST_ROWS = 8  # of a table that is not folded
MEANING = {
    "interval": "intervals (IBP)",
    "crown": "linear bounds (CROWN)",
    "alpha": "optimised slopes",
    "search": "exact search over the group",
    "joint": "joint refinement of the group",
    "gap": "open",
    "fooled": "falls to the attack",
    "misclassified": "wrong without perturbation",
    "error": "error",
}


@dataclass(frozen=True)
class Series:
    """Certifications that differ in one number only, and both curves over it."""

    names: tuple[str, ...]
    """What sets it apart from other series: run, then settings."""
    certified: tuple[Point, ...]
    attacked: tuple[Point, ...]
    measured: int
    head: bool
    """Holds the certification that the run is judged by."""


def robustness(records: list[Record]) -> Section:
    certified = [(record, c) for record in records for c in record.certifications]
    blocks: list[Block] = []
    attacks = _attacks(records)
    if not certified:
        start: Words = ("No run is certified yet. ", Code("citrus certify RUN"), " makes a start.")
        return Section("robustness", "Against eps and group size", (Paragraph(start, "note"), *attacks))
    figures = [chart for chart in (_over_eps(records), _over_size(records)) if chart]
    if figures:
        blocks.append(Figures(tuple(figures)))
    if len(figures) < 2:
        words: Words = (
            "Certify with other settings to see a curve: ",
            *(Code("citrus certify RUN --group-size 20"), " or ", Code("citrus certify RUN --eps 0.05"), "."),
        )
        blocks.append(Paragraph(words, "note"))
    table = _table(certified, len(records) > 1)
    blocks.append(table if len(certified) <= MOST_ROWS else Fold(f"All {len(certified)} certifications", (table,)))
    return Section("robustness", "Against eps and group size", (*blocks, *attacks))


def _series(
    record: Record, fixed: Callable[[Certified], str], where: Callable[[Certified], float]
) -> list[tuple[Series, Certified]]:
    """Finished certifications that agree in what is `fixed`, in the order of `where`; with each series its first."""
    found: dict[tuple[str, ...], list[Certified]] = {}
    for c in record.certifications:
        if c.finished:
            found.setdefault((fixed(c), c.grouping, c.verifier, f"{c.images} images"), []).append(c)
    head = headline_certification(record)
    series = []
    for names, members in found.items():
        members.sort(key=where)
        certified = tuple((where(c), c.certified) for c in members)
        attacked = tuple((where(c), c.attacked) for c in members)
        series.append((Series((record.name, *names), certified, attacked, len(members), head in members), members[0]))
    return series


def _chosen(series: list[list[Series]]) -> list[Series]:
    """Of several runs the longest curve each, of one run all curves; those of one measurement only if no other is."""
    curves = [[s for s in mine if len(s.certified) > 1] for mine in series]
    for mine in curves:
        mine.sort(key=lambda s: (-s.measured, not s.head))
    if len(curves) > 1:
        return [s for mine in curves for s in mine[:1]]
    long = [s for s in curves[0] if s.measured > 1]
    return long[:MOST_LINES] or curves[0][:1]


def _labels(series: list[Series]) -> list[str]:
    """What sets each apart from the others."""
    differing = [i for i, values in enumerate(zip(*(s.names for s in series), strict=True)) if len(set(values)) > 1]
    return [", ".join(s.names[i] for i in (differing or [1])) for s in series]


def _over_eps(records: list[Record]) -> Figure | None:
    """At eps 0 both curves begin at the clean accuracy of the same images: nothing is perturbed there."""

    def curves(record: Record) -> list[Series]:
        pairs = _series(record, lambda c: f"N = {c.group_size}", lambda c: c.eps)
        return [_begun(s, 0.0, first.correct, first.correct) for s, first in pairs]

    chosen = _chosen([curves(record) for record in records])
    axis, title, runs = ("eps", "radius eps"), "Accuracy against the radius eps", [r.name for r in records]
    return _chart(axis, title, chosen, lambda v: format_eps(v) if v else "0", runs)


def _over_size(records: list[Record]) -> Figure | None:
    """A group of one is ordinary certification: where nobody ran it, the cascade's single-image proofs tell."""

    def curves(record: Record) -> list[Series]:
        pairs = _series(record, lambda c: f"eps {format_eps(c.eps)}", lambda c: c.group_size)
        return [_begun(s, 1.0, first.alone, _one_by_one(record, first)) for s, first in pairs]

    chosen = _chosen([curves(record) for record in records])
    axis, title = ("N", "images that share one perturbation, N"), "Accuracy against the group size N"
    return _chart(axis, title, chosen, lambda v: f"{v:g}", [r.name for r in records])


def _one_by_one(record: Record, c: Certified) -> float | None:
    """What is left of the same images one by one: a shared perturbation that fools is an attack, too."""
    measured = record.summary
    same = measured and (measured.eps, measured.attacked_images) == (c.eps, c.images)
    if not measured or measured.pgd is None or not same or record.config.get("clip"):
        return None
    return min(measured.pgd, c.attacked)


def _begun(series: Series, where: float, certified: float | None, attacked: float | None) -> Series:
    """With a point before the first that was measured, if it is known."""

    def line(points: tuple[Point, ...], value: float | None) -> tuple[Point, ...]:
        return points if value is None or points[0][0] <= where else ((where, value), *points)

    return replace(series, certified=line(series.certified, certified), attacked=line(series.attacked, attacked))


def _chart(
    axis: tuple[str, str], title: str, series: list[Series], tick: Callable[[float], str], runs: list[str]
) -> Figure | None:
    """Several runs have the colours of their places, as in every chart; curves of one run those of their own."""
    if not series:
        return None
    x, lines, bands, keys = axis[0], [], [], []
    for k, (s, label) in enumerate(zip(series, _labels(series), strict=True)):
        number = runs.index(s.names[0]) if len(runs) > 1 else k
        proved = Line(f"{label}, certified", s.certified, number)
        attacked = Line(f"{label}, attacked", s.attacked, number, dashed=True)
        lines += [proved, attacked]
        bands.append((proved, attacked))
        keys.append(series_key(label, number))
    places = [(p[0], tick(p[0])) for line in lines for p in line.points]
    axes = (
        value_axis(axis[1], places, logarithmic=x == "N"),
        linear_axis("percent of test images", (p[1] for line in lines for p in line.points), span=4),
    )
    told = "; ".join(
        f"{line.label}: " + ", ".join(f"{value:.2f} at {x} {tick(where)}" for where, value in line.points)
        for line in lines
    )
    styles = (Key("proved (lower bound)", "ink", "solid"), Key("left by the attack (upper bound)", "ink", "dashed"))
    return line_chart(f"curve-{x}", title, told, axes, lines, (*keys, *styles) if len(keys) > 1 else styles, bands)


def _table(certified: list[tuple[Record, Certified]], named: bool) -> Table:
    header = ("Certification", "Images", "Clean", "Certified", "Attacked", "Seconds")
    rows = []
    for record, c in certified:
        setting = f"eps {format_eps(c.eps)}, N = {c.group_size}"
        state = "" if c.finished else f" · {c.images} of {c.asked} images so far"
        note = f"{c.verifier}, groups: {c.grouping}{state}"
        values = (f"{c.correct:.2f}", f"{c.certified:.2f}", f"{c.attacked:.2f}")
        seconds = ABSENT if c.seconds is None else f"{c.seconds:.1f}"
        name = f"{record.name}: {setting}" if named else setting
        rows.append((Cell(name, note), Cell(str(c.images)), *(Cell(v) for v in values), Cell(seconds)))
    return Table("All certifications, percent of test images", header, tuple(rows))


def _attacks(records: list[Record]) -> list[Table]:
    """What `citrus attack` measured: upper bounds without proofs."""
    rows = []
    for record in records:
        for found in record.attacks:
            eps = ABSENT if found.eps is None else format_eps(found.eps)
            name = f"{record.name}: eps {eps}" if len(records) > 1 else f"eps {eps}"
            shares = (found.clean, found.ibp_certified, found.pgd, found.universal)
            percent = (Cell(ABSENT if share is None else f"{share:.2f}") for share in shares)
            note = f"N = {found.group_size}, first {found.attacked_images} images"
            rows.append((Cell(name, note), *percent))
    header = ("Attack", "Clean", "Certified (IBP)", "One by one (PGD)", "Universal")
    return [Table("All attacks, percent of test images", header, tuple(rows))] if rows else []


def cascade(records: list[Record]) -> Section | None:
    """Which stage settled how many images."""
    shown = [(record, c) for record in records for c in record.certifications if c.stages]
    if len(records) > 1:
        heads = [headline_certification(record) for record in records]
        shown = [(record, c) for record, c in shown if c in heads]
    shown = shown[:MOST_BARS]
    if not shown:
        return None
    others = sorted({name for _, c in shown for name in c.stages} - set(STAGES))
    stages = [name for name in (*STAGES, *others) if any(c.stages.get(name) for _, c in shown)]
    rest = [name for name in OUTCOMES if any(c.outcomes.get(name) for _, c in shown)]
    labels = _names(shown, len(records) > 1)
    columns = [[c.stages.get(n, 0) for n in stages] + [c.outcomes.get(n, 0) for n in rest] for _, c in shown]
    names = [*stages, *rest]
    colours = [name if name in MEANING else "other" for name in names]
    bars = []
    for label, column in zip(labels, columns, strict=True):
        told = ", ".join(f"{MEANING.get(n, n)} {v}" for n, v in zip(names, column, strict=True))
        bars.append(Bar(label, tuple(zip(column, colours, strict=True)), told))
    rows = tuple(
        (
            Cell(MEANING.get(name, name), colour=colours[i]),
            *(_share(name, column[i], c) for column, (_, c) in zip(columns, shown, strict=True)),
        )
        for i, name in enumerate(names)
    )
    said = "Cheap proofs come first; each stage sees only what those before it left open, so its share is what it adds."
    table = Table("Images by the stage that settled them", ("Stage", *labels), rows)
    return Section(
        "cascade", "Which proof did the work", (Paragraph((said,)), Bars("Share of all images", tuple(bars)), table)
    )


def _names(shown: list[tuple[Record, Certified]], named: bool) -> list[str]:
    """eps and N, and whatever else tells the certifications apart."""
    differs = [len({getattr(c, name) for _, c in shown}) > 1 for name in ("verifier", "grouping")]
    return [
        (f"{record.name}: " if named else "")
        + ", ".join(
            [f"eps {format_eps(c.eps)}", f"N = {c.group_size}"]
            + [value for value, differ in zip((c.verifier, c.grouping), differs, strict=True) if differ]
            + ([] if c.finished else ["so far"])
        )
        for record, c in shown
    ]


def _share(name: str, number: int, c: Certified) -> Cell:
    """The attack is a stage too; what it settles are the images that it fools."""
    seconds = c.stage_seconds.get({"fooled": "attack"}.get(name, name))
    note = "" if seconds is None else f", {seconds:.1f} s"
    return Cell(str(number), f"{100 * number / c.images:.1f} %{note}")
