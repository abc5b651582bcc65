"""Accuracy against eps and against group size, all certifications, and what each stage of the cascade proved."""

from citrus.inputs import format_eps
from citrus.report.certifications import Certified, size_text
from citrus.report.charts import bar_chart
from citrus.report.curves import apart, curves
from citrus.report.document import Cell, Cells, Piece, Section, code, figure, fold, paragraph, table
from citrus.report.read import Record
from citrus.report.values import PERCENTAGES

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
    pieces = [chart for axis in ("N", "eps") if (chart := curves(records, axis))]
    certified = [(record, c) for record in records for c in record.certifications]
    if certified and len(pieces) < 2:
        size, eps = code("citrus certify RUN --group-size 1,5,20,100,all"), code("citrus certify RUN --eps 0.05")
        pieces.append(paragraph("Certify with other settings to see a curve: ", size, " or ", eps, ".", kind="note"))
    if certified:
        listed = _certifications(certified)
        pieces.append(listed if len(certified) <= MOST_ROWS else fold(f"All {len(certified)} certifications", listed))
    if any(record.attacks for record in records):
        pieces.append(_attacks(records))
    return Section("robustness", "Against group size and eps", pieces) if pieces else None


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
            k = found["attacked_images"]
            on = f"N = {size_text(found['group_size'], k)}, first {k} images"
            rows.append([Cell(said, on), *percent])
    header = ("Attack", "Clean", "Certified (IBP)", "One by one (PGD)", "Universal")
    return table("All attacks, percent of test images", header, rows)


def cascade(records: list[Record]) -> Section | None:
    """Which stage settled how many images; of several runs only in the certifications they are judged by."""
    every = [(record, c) for record in records for c in record.certifications if c.stages]
    shown = [(record, c) for record, c in every if len(records) == 1 or c == record.headline][:MOST_BARS]
    if not shown:
        return None
    labels = apart([_names(record, c) for record, c in shown], always=(1, 2, 5))
    known = {name: said for name, said in (STAGES | OUTCOMES).items() if any(c.settled.get(name) for _, c in shown)}
    bars = [(label, c.settled) for label, (_, c) in zip(labels, shown, strict=True)]
    rows = [[Cell(said), *(_share(name, c) for _, c in shown)] for name, said in known.items()]
    said = "Cheap proofs come first; each stage sees only what those before it left open, so its share is what it adds."
    listed = table("Images by the stage that settled them", ["Stage", *labels], rows)
    pieces = [paragraph(said), figure(bar_chart("Share of all images", bars, known), wide=True), listed]
    return Section("cascade", "Which proof did the work", pieces)


def _names(record: Record, c: Certified) -> tuple[str, ...]:
    so_far = "so far" if c.so_far else ""
    return record.name, f"eps {format_eps(c.eps)}", c.size, c.verifier, c.grouping, so_far, c.floats


def _share(name: str, c: Certified) -> Cell:
    """The attack is a stage too; what it settles are the images that it fools."""
    images, seconds = c.settled.get(name, 0), c.stage_seconds.get("attack" if name == "fooled" else name)
    note = "" if seconds is None else f", {seconds:.1f} s"
    return Cell(str(images), f"{100 * images / c.images:.1f} %{note}")
