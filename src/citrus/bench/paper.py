"""The paper's evaluation: every table and figure by name, made from shared runs.

study = Study(SCALES["demo"], Path("runs/paper-demo"))
sheets = make(study, "demo", ["main", "ablation-tau"])
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from citrus.bench import sweeps, tables
from citrus.bench.scales import Case, Scale
from citrus.bench.sheets import Sheet, write_sheet, write_together
from citrus.bench.study import Results, Study


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
    write_together(study.out, TABLES, scale_name)
    return sheets
