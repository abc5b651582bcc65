"""`citrus bench paper`: the tables and figures of the CITRUS paper, with the published values beside ours."""

import sys
from dataclasses import dataclass
from pathlib import Path

from citrus.bench import Listener
from citrus.bench.paper import TABLES, make
from citrus.bench.scales import SCALES
from citrus.bench.sheets import Sheet, setup
from citrus.bench.study import Study
from citrus.commands.bench_progress import announce, report
from citrus.commands.flags import parse_flags
from citrus.console import table
from citrus.errors import CitrusError, suggest
from citrus.training import Stopped


@dataclass
class PaperFlags:
    """The paper's evaluation: citrus bench paper --table ablation-tau --scale cpu

    Tables share their runs. The same command goes on where it was stopped, and only tries again what failed.
    """

    table: str = "all"
    """all, or some of main, adversarial, ablation-tau, ablation-batch, ablation-si, figure-loss, runtimes."""
    scale: str = "demo"
    """demo (embedded digits, minutes), cpu (ConvSmall on MNIST, 90 minutes on two cores) or full (CNN7, GPU days)."""
    seed: int = 0
    """Seed of everything."""
    out: str | None = None
    """Folder of the results (paper.md, TABLE.md, TABLE.json) and of all runs; by default runs/paper-SCALE."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""
    device: str = "auto"
    """cpu, cuda or auto."""


def run_paper(arguments: list[str]) -> int:
    """the tables and figures of the CITRUS paper, beside the published values"""
    flags, _ = parse_flags(PaperFlags, "bench paper", arguments)
    names = _tables(flags.table)
    if flags.scale not in SCALES:
        raise CitrusError(f"Unknown scale {flags.scale!r}: {suggest(flags.scale, SCALES)}")
    study = Study(
        *(SCALES[flags.scale], Path(flags.out or f"runs/paper-{flags.scale}")),
        seed=flags.seed,
        data_dir=flags.data_dir,
        device=flags.device,
        listener=Listener(on_method=announce, on_row=report),
    )
    try:
        sheets = make(study, flags.scale, names)
    except Stopped:
        print("Stopped; the same command goes on.", file=sys.stderr)
        return 130
    print(setup(study, flags.scale))
    for sheet in sheets:
        print(f"\n{_text(sheet)}")
    print(f"\nresults  {study.out / 'paper.md'}")
    return 2 if any(sheet.missing for sheet in sheets) else 0


def _tables(text: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in [*TABLES, "all"]:
            raise CitrusError(f"Unknown table {word!r}: {suggest(word, [*TABLES, 'all'])}")
    if not words:
        raise CitrusError(f"Which table? --table all, or some of {', '.join(TABLES)}.")
    return list(TABLES) if "all" in words else list(dict.fromkeys(words))


def _text(sheet: Sheet) -> str:
    lines = [table(sheet.header, sheet.cells, sheet.title), ""]
    lines += [f"{finding.answer}: {finding.claim} ({finding.evidence})" for finding in sheet.findings]
    return "\n".join([*lines, *(f"missing: {text}" for text in sheet.missing)])
