"""From run folders to report.html and report.md: all sections, and those that one wants to read first."""

import time
from pathlib import Path

from citrus.console import duration
from citrus.files import write_text
from citrus.inputs import format_eps
from citrus.report.charts import bar_chart
from citrus.report.document import ABSENT, Cell, Piece, Section, code, document, figure, paragraph, strong, table
from citrus.report.history import setup, training
from citrus.report.perturbation import classes, perturbations
from citrus.report.read import PERCENTAGES, Certified, Record
from citrus.report.robustness import OUTCOMES, cascade, robustness
from citrus.version import __version__

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
    makers = (headline, missing, robustness, cascade, perturbations, classes, training, setup)
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
    leads = [(record, c) for record in records if (c := record.headline)]
    pieces = [_lead(leads[0][1])] if leads and len(records) == 1 else []
    if leads:
        pieces.append(_outcome_bars(leads))
    title = "How robust it is" if len(records) == 1 else "How robust they are"
    return Section("headline", title, [*pieces, _headline_table(records)])


def _lead(c: Certified) -> Piece:
    so_far = f" ({c.so_far})" if c.so_far else ""
    shared = f"every perturbation that {c.group_size} of them share" if c.group_size > 1 else "every perturbation"
    return paragraph(
        strong(f"{c.certified:.2f} %"),
        f" of {c.images} test images are proved to stay right under {shared}, up to eps {format_eps(c.eps)}{so_far}. "
        "The strongest attack found leaves ",
        strong(f"{c.attacked:.2f} %"),
        f"; without any perturbation {c.correct:.2f} % are right.",
        kind="lead",
    )


def _outcome_bars(leads: list[tuple[Record, Certified]]) -> Piece:
    bars = [(f"{r.prefix}{c.setting}, {c.images} images", c.images_by_outcome()) for r, c in leads]
    present = {name: said for name, said in OUTCOMES.items() if any(counts[name] for _, counts in bars)}
    return figure(bar_chart("Every test image once", bars, present), wide=True)


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
        "Certified, universal": _percent(proved.certified if proved else None, scope),
        "Attacked, one by one (PGD)": _percent(pgd, f"{attacked}, {steps} steps{at}"),
        "Attacked, universal": _percent(universal, f"{attacked}, N = {size}{at}"),
        "Attacked, universal, while certifying": _percent(proved.attacked if proved else None, scope),
        "Training time": _time(record.training_seconds),
        "Certification time": _time(proved.seconds if proved else None),
    }


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
    return f"{c.images} images, N = {c.group_size}{_at(c.eps, record)}" + (", unfinished" if c.so_far else "")


def _at(eps: float | None, record: Record) -> str:
    """Says at what eps something was measured, if that is not the run's own."""
    return "" if eps is None or eps == record.eps else f", eps {format_eps(eps)}"


def _percent(value: float | None, note: str) -> Cell:
    return Cell(ABSENT) if value is None else Cell(f"{value:.2f}", note)


def missing(records: list[Record]) -> Section | None:
    """What is not there, with the command that would make it."""
    items = []
    for record in records:
        for entry in record.missing:
            command = (" ", code(entry.command)) if entry.command else ()
            items.append(paragraph(record.prefix + entry.text, *command, kind="item"))
    return Section("missing", "What is missing", items) if items else None
