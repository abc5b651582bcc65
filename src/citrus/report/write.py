"""From run folders to report.html and report.md: all sections, and those that one wants to read first."""

import time
from math import floor
from pathlib import Path

from citrus.console import duration
from citrus.files import write_text
from citrus.inputs import format_eps
from citrus.report.certifications import Certified, shared_text, size_text
from citrus.report.charts import bar_chart
from citrus.report.curves import headline_curve
from citrus.report.document import ABSENT, Cell, Piece, Section, code, document, figure, paragraph, strong, table
from citrus.report.history import setup, training
from citrus.report.perturbation import classes, perturbations
from citrus.report.read import Record
from citrus.report.robustness import OUTCOMES, cascade, robustness
from citrus.report.targets import targets_section
from citrus.report.values import PERCENTAGES
from citrus.version import __version__

OTHER_INPUTS = "Inputs that nobody has seen, at least"
CONDITION = (
    "with 99 % confidence, if the test images were drawn at random and the network was neither trained nor chosen with "
    "them"
)
MOST_COLUMNS = 4  # runs that stand beside each other as columns; more become rows


def write_report(records: list[Record], out: Path) -> tuple[Path, Path]:
    """Write both files into a folder."""
    report = compose(records)
    page, twin = out / "report.html", out / "report.md"
    write_text(page, report.html)
    write_text(twin, report.markdown)
    return page, twin


def compose(records: list[Record]) -> Piece:
    """The page and its twin: all sections that have something to say."""
    one = len(records) == 1
    makers = (headline, missing, robustness, cascade, perturbations, targets, classes, training, setup)
    return document(
        title=records[0].name if one else f"{len(records)} runs compared",
        subtitle=_about(records[0]) if one else ", ".join(record.name for record in records),
        sections=[section for make in makers if (section := make(records))],
        footer=f"Written by citrus {__version__} on {time.strftime('%Y-%m-%d %H:%M')} from the files of the run.",
    )


def _about(record: Record) -> str:
    """What was trained, and how far it is."""
    words = [record.method, record.config.get("data"), record.config.get("network")]
    if record.eps is not None:
        words.append(f"eps {format_eps(record.eps)}")
    done, planned = len(record.metrics), record.config.get("epochs")
    if planned:
        words.append(f"{planned} epochs" if done >= planned else f"epoch {done} of {planned}, not finished")
    return " · ".join(word for word in words if word) or "There is nothing in this folder yet."


def headline(records: list[Record]) -> Section:
    leads, pieces = [(record, c) for record in records if (c := record.headline)], list[Piece]()
    if leads and len(records) == 1:
        pieces += [_lead(leads[0][1]), *_other_inputs(leads[0][1])]
    if curve := headline_curve(records):
        pieces.append(curve)
    if leads:
        pieces.append(_outcome_bars(leads))
    pieces.append(_headline_table(records))
    if len(records) > 1 and any(c.other_inputs is not None for _, c in leads):
        pieces.append(
            paragraph(
                f"{OTHER_INPUTS}: so many stay right whatever one perturbation they all meet, {CONDITION}.", kind="note"
            )
        )
    return Section("headline", "How robust it is" if len(records) == 1 else "How robust they are", pieces)


def _lead(c: Certified) -> Piece:
    so_far = f" ({c.so_far})" if c.so_far else ""
    shared = f"every perturbation that {c.group_size} of them share" if c.group_size > 1 else "every perturbation"
    if c.for_all:
        shared = f"{shared_text(c.group_size, c.asked_images)}, whichever it is"
    return paragraph(
        strong(f"{c.certified:.2f} %"),
        f" of {c.images} test images are proved to stay right under {shared}, up to eps {format_eps(c.eps)}{so_far}. "
        "The strongest attack found leaves ",
        strong(f"{c.attacked:.2f} %"),
        f"; without any perturbation {c.correct:.2f} % are right.",
        kind="lead",
    )


def _other_inputs(c: Certified) -> list[Piece]:
    """What follows about inputs that nobody has seen, and when."""
    if c.used:
        return [paragraph(f"Nothing follows about inputs that nobody has seen: {c.used.rstrip('.')}.")]
    if c.other_inputs is None:
        return []
    whatever = f" stay right, too, whatever single perturbation up to eps {format_eps(c.eps)} they all meet"
    least = strong(f"{_rounded_down(c.other_inputs)} %")
    return [paragraph("Of all inputs that nobody has seen at least ", least, f"{whatever}: {CONDITION}.")]


def _rounded_down(percent: float) -> str:
    return f"{floor(100 * percent) / 100:.2f}"


def _outcome_bars(leads: list[tuple[Record, Certified]]) -> Piece:
    bars = [(f"{r.prefix}{_setting(c)}", c.images_by_outcome()) for r, c in leads]
    present = {name: said for name, said in OUTCOMES.items() if any(counts[name] for _, counts in bars)}
    return figure(bar_chart("Every test image once", bars, present), wide=True)


def _setting(c: Certified) -> str:
    if not c.for_all:
        return f"{c.setting}, {c.images} images"
    return ", ".join(filter(None, (f"eps {format_eps(c.eps)}", shared_text(c.group_size, c.asked_images), c.floats)))


def _headline_table(records: list[Record]) -> Piece:
    """Runs beside each other; a note that is the same for all of them stands below the measure, once."""
    columns, runs = [_column(record) for record in records], [record.name for record in records]
    caption = "Percent of test images classified right"
    rows: list[list[Cell]] = []
    if len(records) > MOST_COLUMNS:
        rows = [[Cell(run), *column.values()] for run, column in zip(runs, columns, strict=True)]
        return table(caption, ["Run", *columns[0]], rows)
    for name in columns[0]:
        cells = [column[name] for column in columns]
        same = len({cell.note for cell in cells}) == 1
        plain = [Cell(name, cells[0].note), *(Cell(cell.text) for cell in cells)]
        rows.append(plain if same else [Cell(name), *cells])
    return table(caption, ["Measure", *runs], rows)


def _column(record: Record) -> dict[str, Cell]:
    measured, proved = record.measured, record.headline
    n, k, size, steps = (measured.get(name) for name in ("images", "attacked_images", "group_size", "pgd_steps"))
    clean, intervals, pgd, universal = (measured.get(name) for name in PERCENTAGES)
    at = _at(measured.get("eps"), record)
    images, attacked, scope = f"{n} images", f"first {k} images", _scope(proved, record) if proved else ""
    shared = f"N = {size_text(size, k)}" if size and k else ""
    setting = [record.config[name] for name in ("data", "network") if name in record.config]
    told_apart = {
        "Method": Cell(record.method or ABSENT, ", ".join(setting)),
        "eps": Cell(ABSENT if record.eps is None else format_eps(record.eps)),
    }
    return {
        **(told_apart if record.prefix else {}),
        "Clean": _percent(clean, images),
        "Certified, one by one (IBP)": _percent(intervals, images + at),
        "Certified, one by one": _alone(record, proved) if proved else Cell(ABSENT),
        "Attacked, one by one (PGD)": _percent(pgd, f"{attacked}, {steps} steps{at}"),
        "Certified, universal": _percent(proved.certified if proved else None, scope),
        "Attacked, universal, while certifying": _percent(proved.attacked if proved else None, scope),
        "Attacked, universal": _percent(universal, f"{attacked}, {shared}{at}"),
        **({OTHER_INPUTS: _others_cell(proved)} if record.prefix else {}),
        "Training time": _time(record.training_seconds),
        "Certification time": _time(proved.seconds if proved else None),
    }


def _others_cell(proved: Certified | None) -> Cell:
    """What follows about inputs that nobody has seen, in a comparison."""
    if proved is None or proved.other_inputs is None:
        return Cell(ABSENT, proved.used if proved else "")
    return Cell(_rounded_down(proved.other_inputs))


def _alone(record: Record, proved: Certified) -> Cell:
    """Percent certified one by one at the headline's eps, and how that is known."""
    same = [c for c in record.certifications if c.group_size == 1 and c.eps == proved.eps and not c.so_far]
    if same:
        best = max(same, key=lambda c: (c.images, c.certified))
        return _percent(best.certified, _scope(best, record))
    return _percent(proved.alone, f"{proved.images} images, by the cascade's first stages{_at(proved.eps, record)}")


def _time(seconds: float | None) -> Cell:
    return Cell(ABSENT if seconds is None else duration(seconds))


def _scope(c: Certified, record: Record) -> str:
    shared = shared_text(c.group_size, c.asked_images) if c.for_all else f"{c.images} images, {c.size}"
    told = (f"{shared}{_at(c.eps, record)}", c.floats, "unfinished" if c.so_far else "")
    return ", ".join(filter(None, told))


def _at(eps: float | None, record: Record) -> str:
    """Says at what eps something was measured, if that is not the run's own."""
    return "" if eps is None or eps == record.eps else f", eps {format_eps(eps)}"


def _percent(value: float | None, note: str) -> Cell:
    return Cell(ABSENT) if value is None else Cell(f"{value:.2f}", note)


def targets(records: list[Record]) -> Section | None:
    return targets_section([(record.prefix, record.targets) for record in records])


def missing(records: list[Record]) -> Section | None:
    """What is not there, with the command that would make it."""
    items = []
    for record in records:
        for entry in record.missing:
            command = (" ", code(entry.command)) if entry.command else ()
            items.append(paragraph(record.prefix + entry.text, *command, kind="item"))
    return Section("missing", "What is missing", items) if items else None
