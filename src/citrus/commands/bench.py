"""`citrus bench WHAT`: studies of many runs. Each goes on where it was stopped, and tries again what failed."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from citrus.commands.target import parse_flags, take_word
from citrus.console import Bar, duration, table
from citrus.errors import CitrusError, code_of, suggest
from citrus.files import locked, write_text
from citrus.studies import Listener, Study, StudyResult, read_rows, run_study
from citrus.studies.methods import Contest, methods_sheet, methods_study
from citrus.studies.paper import SCALES, TABLES, make_paper, setup
from citrus.studies.plan import read_plan, runs_sheet
from citrus.studies.sheets import Sheet
from citrus.training import Events, Stopped


@dataclass(frozen=True)
class StudyFlags:
    """Of every study."""

    out: str | None = None
    """Folder of the rows (rows.jsonl), the tables and all runs; by default runs/ and the name of the study."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""
    device: str = "auto"
    """cpu, cuda or auto."""

    def study(self, name: str) -> Study:
        return Study(name, Path(self.out or f"runs/{name}"), data_dir=self.data_dir, device=self.device)


@dataclass(frozen=True)
class MethodsFlags(StudyFlags, Contest):
    """Compare all training methods: citrus bench methods --data mnist --network convsmall --eps 0.1"""


@dataclass(frozen=True)
class PaperFlags(StudyFlags):
    """The paper's evaluation: citrus bench paper --table ablation-tau --scale cpu

    Tables share their runs.
    """

    table: str = "all"
    """all, or some of main, adversarial, ablation-tau, ablation-batch, ablation-si, figure-loss, runtimes."""
    scale: str = "demo"
    """demo (embedded digits, a minute), cpu (ConvSmall on MNIST, 90 minutes on two cores) or full (CNN7, GPU days)."""
    seed: int = 0
    """Seed of everything."""


@dataclass(frozen=True)
class PlanFlags(StudyFlags):
    """Train and measure the runs of a plan: citrus bench plan PLAN.json --out runs/search --workers 3

    A plan is a list of {"name": ..., "recipe": ..., "set": {"epochs": 60, "method.tau_ratio": 0.4}}.
    """

    on: Literal["auto", "validation", "test"] = "auto"
    """What networks are measured on. auto: held-out training images where a run has some, else test images."""
    certify: int = 0
    """Images to certify in groups of 5 and of 20, the first ones."""
    workers: int = 1
    """Runs at a time; small networks leave room for several on one GPU."""
    seconds: float | None = None
    """No epoch begins after so long; runs keep their state."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    if name is None and set(arguments) & {"--help", "-h"}:
        print("usage: citrus bench WHAT [FLAGS]\n\n" + "\n".join(f"  {n:10}{f.__doc__}" for n, f in STUDIES.items()))
        return 0
    if name not in STUDIES:
        raise CitrusError(f"Which benchmark? citrus bench WHAT: {suggest(name or '', STUDIES)}")
    try:
        return STUDIES[name](rest)
    except Stopped as stop:
        print(f"{stop}\nStopped; the same command goes on.", file=sys.stderr)
        return stop.code
    except KeyboardInterrupt as stop:
        print("Stopped; the same command goes on.", file=sys.stderr)
        return code_of(stop)


def run_methods(arguments: list[str]) -> int:
    """every training method with the same budget, attacked and certified"""
    flags, _ = parse_flags(MethodsFlags, "bench methods", arguments)
    study = methods_study(flags, flags.study("bench-methods"))
    with locked(study.out):
        sheet = methods_sheet(flags, run_study(study, Listener(announce, report)))
        write_text(study.out / "results.md", sheet.markdown())
    return show([sheet], study.out / "results.md")


def run_paper(arguments: list[str]) -> int:
    """the tables and figures of the CITRUS paper, beside the published values"""
    flags, _ = parse_flags(PaperFlags, "bench paper", arguments)
    names = [word for word in flags.table.split(",") if word]
    for word in names:
        if word not in (*TABLES, "all"):
            raise CitrusError(f"Unknown table {word!r}: {suggest(word, [*TABLES, 'all'])}")
    if not names:
        raise CitrusError(f"Which table? --table all, or some of {', '.join(TABLES)}.")
    if flags.scale not in SCALES:
        raise CitrusError(f"Unknown scale {flags.scale!r}: {suggest(flags.scale, SCALES)}")
    scale, study = replace(SCALES[flags.scale], seed=flags.seed), flags.study(f"paper-{flags.scale}")
    tables = list(TABLES) if "all" in names else list(dict.fromkeys(names))
    with locked(study.out):
        sheets = make_paper(scale, study, tables, Listener(announce, report))
    print(f"{setup(scale, study)}\n")
    return show(sheets, study.out / "paper.md")


def run_plan(arguments: list[str]) -> int:
    """the runs of a plan: a recipe each, and what is set in it"""
    file, rest = take_word(arguments)
    flags, _ = parse_flags(PlanFlags, "bench plan", rest)
    if file is None:
        raise CitrusError("Which plan? citrus bench plan PLAN.json")
    entries = read_plan(Path(file), flags.certify, flags.on)
    deadline = math.inf if flags.seconds is None else time.time() + flags.seconds
    study = replace(flags.study(Path(file).stem), entries=entries, workers=flags.workers, deadline=deadline)
    with locked(study.out):
        study.open_rows().claim({"on": flags.on, "certify": flags.certify})
        results = run_study(study, Listener(announce, report))
    run_rows([str(study.out / "rows.jsonl")])
    print(f"results  {study.out / 'rows.jsonl'}")
    return 2 if any(result.error for result in results) else 0


def run_rows(arguments: list[str]) -> int:
    """the runs of a file of rows as a table: citrus bench rows FILE.jsonl"""
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        raise CitrusError("Which rows? citrus bench rows FILE.jsonl")
    print(runs_sheet(read_rows(Path(arguments[0]))).markdown())
    return 0


STUDIES: dict[str, Callable[[list[str]], int]] = {
    "methods": run_methods,
    "paper": run_paper,
    "plan": run_plan,
    "rows": run_rows,
}
"""`citrus bench NAME`: the first line of each function's docstring is its help."""


def show(sheets: Sequence[Sheet], path: Path) -> int:
    """Print tables with what they say; 2 where something is missing."""
    for sheet in sheets:
        missing = [f"missing: {text}" for text in sheet.missing]
        print("\n".join([table(sheet.header, sheet.cells, sheet.title), "", *sheet.notes, *missing, ""]))
    print(f"results  {path}")
    return 2 if any(sheet.missing for sheet in sheets) else 0


def announce(name: str, place: int, total: int) -> Events:
    """A bar for the training of one entry."""
    what = f"[{place}/{total}] {name}"
    print(what, file=sys.stderr, flush=True)
    bar = Bar(what)
    return Events(on_step=lambda now: bar.update(now.step, now.steps, f"eps {now.eps:.4f} loss {now.loss:.4f}"))


def report(result: StudyResult) -> None:
    """What is known of an entry now."""
    text = result.error
    if not text:
        words = [f"clean {result.run['clean']:.1f}, PGD {result.pgd:.1f}, UAP attack {result.uap:.1f}"]
        words += [f"certified for N = {p['group_size']} {p['certified']:.1f}" for p in result.proofs]
        text = ", ".join([*words, duration(result.seconds)])
    print(f"{result.name}: {text}", file=sys.stderr, flush=True)
