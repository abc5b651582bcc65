"""From run folders to report.html and report.md."""

import time
from pathlib import Path

from citrus.files import write_text
from citrus.inputs import format_eps
from citrus.report.document import Piece, document
from citrus.report.files import count, text
from citrus.report.history import setup, training
from citrus.report.overview import headline, missing
from citrus.report.perturbation import classes, perturbations
from citrus.report.read import Record
from citrus.report.robustness import cascade, robustness
from citrus.version import __version__

SECTIONS = (headline, missing, robustness, cascade, perturbations, classes, training, setup)


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
    return document(
        title=records[0].name if one else f"{len(records)} runs compared",
        subtitle=_about(records[0]) if one else ", ".join(record.name for record in records),
        sections=[section for make in SECTIONS if (section := make(records))],
        footer=f"Written by citrus {__version__} on {time.strftime('%Y-%m-%d %H:%M')} from the files of the run.",
    )


def _about(record: Record) -> str:
    """What was trained, and how far it is."""
    words = [record.method, text(record.config, "data"), text(record.config, "network")]
    if record.eps is not None:
        words.append(f"eps {format_eps(record.eps)}")
    done, planned = len(record.metrics), count(record.config, "epochs")
    if planned:
        words.append(f"{planned} epochs" if done >= planned else f"epoch {done} of {planned}, not finished")
    return " · ".join(word for word in words if word) or "There is nothing in this folder yet."
