"""From run folders to report.html and report.md."""

import time
from pathlib import Path

from citrus import __version__
from citrus.files import write_text
from citrus.inputs import format_eps
from citrus.report.document import Document
from citrus.report.files import count, text
from citrus.report.history import setup, training
from citrus.report.markdown import markdown
from citrus.report.overview import headline, missing
from citrus.report.page import html_page
from citrus.report.perturbation import classes, perturbations
from citrus.report.read import Record
from citrus.report.robustness import cascade, robustness


def write_report(records: list[Record], out: Path) -> tuple[Path, Path]:
    """Write both files into a folder."""
    document = compose(records)
    page, twin = out / "report.html", out / "report.md"
    write_text(page, html_page(document))
    write_text(twin, markdown(document))
    return page, twin


def compose(records: list[Record]) -> Document:
    """All sections that have something to say."""
    sections = (
        *(headline(records), missing(records), robustness(records), cascade(records)),
        *(perturbations(records), classes(records), training(records), setup(records)),
    )
    several = ", ".join(record.name for record in records)
    return Document(
        title=records[0].name if len(records) == 1 else f"{len(records)} runs compared",
        subtitle=_about(records[0]) if len(records) == 1 else several,
        sections=tuple(section for section in sections if section),
        footer=f"Written by citrus {__version__} on {time.strftime('%Y-%m-%d %H:%M')} from the files of the run.",
    )


def _about(record: Record) -> str:
    """What was trained, and how far it is."""
    config, planned = record.config, count(record.config, "epochs")
    words = [record.method, text(config, "data"), text(config, "network")]
    if record.eps is not None:
        words.append(f"eps {format_eps(record.eps)}")
    if planned:
        words.append(
            f"{planned} epochs" if record.epochs >= planned else f"epoch {record.epochs} of {planned}, not finished"
        )
    return " · ".join(word for word in words if word) or "There is nothing in this folder yet."
