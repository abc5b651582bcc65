"""A table or figure of the paper with our numbers beside the published ones, as Markdown, JSON and SVG."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from citrus.bench.findings import Finding
from citrus.bench.published import PublishedTable, published, source
from citrus.bench.scales import GROUP
from citrus.bench.study import Study
from citrus.console import duration
from citrus.files import write_json, write_text
from citrus.report.document import ABSENT, Figure
from citrus.report.standalone import svg_file
from citrus.training.environment import environment

RULE = "\n---\n\n"  # in a Markdown file, between what a table says and how it was made
WORDS = ("setting", "method", "loss")  # keys of columns that are no numbers
Columns = tuple[tuple[str, str], ...]
"""Header and key of each column of a table."""


@dataclass(frozen=True)
class Sheet:
    """What one table or figure says."""

    table: str
    """Its name on the command line."""
    title: str
    columns: Columns
    rows: tuple[Mapping[str, Any], ...]
    """A value of None is not known; one that no column shows is in the JSON file only."""
    findings: tuple[Finding, ...]
    note: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By the name of their file."""
    missing: tuple[str, ...] = ()
    """What could not be made, and why."""

    @property
    def header(self) -> list[str]:
        return [title for title, _ in self.columns]

    @property
    def cells(self) -> list[list[str]]:
        return [[_cell(row.get(key)) for _, key in self.columns] for row in self.rows]


def _cell(value: Any) -> str:
    if value is None:
        return ABSENT
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def write_sheet(study: Study, name: str, sheet: Sheet) -> Path:
    """TABLE.md, TABLE.json and the figures."""
    out, found = study.out, environment()
    machine = {key: found[key] for key in ("citrus", "torch", "python", "cpu", "threads", "gpu", "started")}
    for file, figure in sheet.figures.items():
        write_text(out / f"{file}.svg", svg_file(figure))
    write_json(
        out / f"{sheet.table}.json",
        {
            "table": sheet.table,
            "title": sheet.title,
            "published": {"source": source(), **_known(published(sheet.table))},
            "scale": name,
            "seed": study.seed,
            "machine": machine,
            "rows": [dict(row) for row in sheet.rows],
            "findings": [asdict(finding) for finding in sheet.findings],
            "missing": list(sheet.missing),
        },
    )
    path = out / f"{sheet.table}.md"
    threads = f"{machine['threads']} thread{'s'[: machine['threads'] > 1]}"
    where = f"{machine['gpu'] or machine['cpu']}, {threads}, torch {machine['torch']}"
    write_text(path, f"# {markdown(sheet)}{RULE}{setup(study, name)} {where}.\n\nThe paper: {source()}\n")
    return path


def write_together(out: Path, tables: Iterable[str], name: str) -> Path:
    """paper.md: all tables that the folder holds, how they were made, and what the runs took."""
    found = [path.read_text(encoding="utf-8") for table in tables if (path := out / f"{table}.md").exists()]
    parts = [text.partition(RULE) for text in found]
    rows = [json.loads(path.read_text()) for path in sorted(out.glob("*/*/row.json"))]
    took = f"{len(rows)} runs, {duration(sum(row['seconds'] for row in rows))} in all."
    bodies = "\n".join(f"#{body}" for body, _, _ in parts)
    write_text(out / "paper.md", f"# The paper's evaluation at scale {name}\n\n{bodies}{RULE}{parts[-1][2]}\n{took}\n")
    return out / "paper.md"


def _known(theirs: PublishedTable) -> dict[str, Any]:
    rows = [{name: value for name, value in asdict(row).items() if value is not None} for row in theirs.rows]
    return {"where": theirs.where, "note": theirs.note, "rows": rows}


def setup(study: Study, name: str) -> str:
    """How our numbers were made, in one paragraph."""
    scale = study.scale
    epochs = f"{scale.epochs} epochs in batches of {scale.batch_size}" if scale.epochs else "published hyper-parameters"
    left_out = f" ({scale.held_out} training images left out)" if scale.held_out else ""
    return (
        f"Scale {name}: {scale.network}, {epochs}{left_out}, seed {study.seed} (n = 1). Percent: clean accuracy on all "
        f"test images; UAP attack and certified UAP accuracy on the first {scale.images} in groups of {GROUP} in data "
        f"set order, the same verifier for all (at most {scale.proof_seconds:g} s of search and refinement per group)."
    )


def markdown(sheet: Sheet) -> str:
    """Title, table, figures and findings."""
    theirs = published(sheet.table)
    lines = [f"{sheet.title} ({theirs.where})", "", *_table(sheet)]
    for text in (theirs.note, sheet.note):
        lines += ["", text] if text else []
    for file, figure in sheet.figures.items():
        lines += ["", f"![{figure.description}]({file}.svg)"]
    lines += ["", "Does it show what the paper found?", ""]
    lines += [f"- **{finding.answer}**: {finding.claim} ({finding.evidence})." for finding in sheet.findings]
    lines += ["", *(f"- missing: {text}" for text in sheet.missing)] if sheet.missing else []
    return "\n".join([*lines, ""])


def _table(sheet: Sheet) -> list[str]:
    rule = ["---" if key in WORDS else "---:" for _, key in sheet.columns]
    return [f"| {' | '.join(row)} |" for row in (sheet.header, rule, *sheet.cells)]
