"""The paper's evaluation: every table and figure by name, made from shared runs.

study = Study(SCALES["demo"], Path("runs/paper-demo"))
sheets = make(study, "demo", ["main", "ablation-tau"])
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from citrus.bench import sweeps, tables
from citrus.bench.scales import Case, Scale
from citrus.bench.sheets import Sheet, write_sheet
from citrus.bench.study import Results, Study
from citrus.console import duration
from citrus.files import write_text


@dataclass(frozen=True)
class PaperTable:
    """The runs that a table or figure needs, and how it is made of them."""

    cases: Callable[[Scale], list[Case]]
    compose: Callable[[Study, Results], Sheet]


TABLES: dict[str, PaperTable] = {
    "main": PaperTable(tables.main_cases, tables.main),
    "adversarial": PaperTable(tables.adversarial_cases, tables.adversarial),
    "ablation-tau": PaperTable(sweeps.tau_cases, sweeps.tau_sweep),
    "ablation-batch": PaperTable(sweeps.group_cases, sweeps.group_sweep),
    "ablation-si": PaperTable(tables.same_input_cases, tables.same_input),
    "figure-loss": PaperTable(sweeps.loss_cases, sweeps.loss_figure),
    "runtimes": PaperTable(tables.main_cases, tables.runtimes),
}


def make(study: Study, scale_name: str, names: Sequence[str]) -> list[Sheet]:
    """Make the runs that are not there yet, then write the tables; `Stopped` (after Ctrl-C) ends it."""
    found = study.measure(case for name in names for case in TABLES[name].cases(study.scale))
    sheets = [TABLES[name].compose(study, found) for name in names]
    for sheet in sheets:
        write_sheet(study, scale_name, sheet)
    write_together(study.out)
    return sheets


def write_together(out: Path) -> Path:
    """paper.md: all tables that the folder holds, and what its runs took."""
    texts = [path.read_text(encoding="utf-8") for name in TABLES if (path := out / f"{name}.md").exists()]
    rows = [json.loads(path.read_text()) for path in sorted(out.glob("*/*/row.json"))]
    took = duration(sum(row["seconds"] for row in rows))
    write_text(out / "paper.md", "\n".join([*texts, f"{len(rows)} runs in this folder, {took} in all.", ""]))
    return out / "paper.md"
