"""The paper's evaluation: every table and figure by name, from shared runs, the published values beside ours.

    study = Study("paper-demo", Path("runs/paper-demo"))
    sheets = make_paper(SCALES["demo"], study, ["main", "ablation-tau"])

published.json is what the paper says, transcribed from it, and what its tables show.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from citrus.console import duration
from citrus.files import write_text
from citrus.report.charts import svg_file
from citrus.studies.engine import Listener, run_study
from citrus.studies.entries import Entry, Study, StudyResult, missing_of, result_of
from citrus.studies.losses import last_epoch_losses
from citrus.studies.rows import Row, StudyRows, machine
from citrus.studies.scales import GROUP, PaperScale
from citrus.studies.sheets import Sheet, loss_figure, sweep_figure
from citrus.training import load_run, to_dict
from citrus.training.run import pick_device

CERTIFIED = ("ibp", "sabr", "taps", "citrus")
ADVERSARIAL = ("pgd", "uat", "cw_uat", "citrus")
NAMES = {"cw_uat": "CW-UAT", "citrus_si": "CITRUS + SI"}
LOSSES = {
    "same": "same-input box (SI)",
    "cross_sum": f"sum of the {GROUP - 1} cross-input boxes",
    "cross_max": "largest cross-input box",
}


def _main(scale: PaperScale) -> list[Entry]:
    return [scale.entry(setting, method) for setting in scale.main for method in CERTIFIED]


TABLES: dict[str, Callable[[PaperScale], list[Entry]]] = {
    "main": _main,
    "adversarial": lambda scale: [scale.entry(s, method) for s in scale.adversarial for method in ADVERSARIAL],
    "ablation-tau": lambda scale: [scale.entry(scale.focus, "citrus", tau_ratio=tau) for tau in scale.taus],
    "ablation-batch": lambda scale: [scale.entry(scale.focus, "citrus", group_size=size) for size in scale.groups],
    "ablation-si": lambda scale: [scale.entry(scale.focus, method) for method in ("citrus", "citrus_si")],
    "figure-loss": lambda scale: [scale.entry(scale.focus, "citrus")],
    "runtimes": _main,
}
"""The runs that each table or figure needs."""
SWEEPS = ("ablation-tau", "ablation-batch")
"""Tables with a figure: accuracies against their first column."""


@cache
def published() -> Any:
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def published_row(table: str, source: Row) -> Row:
    """The paper's line of a method, and of a setting, tau or group where it has several; empty if none."""
    rows = published()["tables"][table]["rows"]
    asked = {name: source.get(name) for name in ("method", "tau_ratio", "group")}
    if len({row["setting"] for row in rows}) > 1:
        asked["setting"] = source["published"]
    return next((row for row in rows if all(row.get(name, value) == value for name, value in asked.items())), {})


def make_paper(
    scale: PaperScale,
    study: Study,
    tables: Sequence[str],
    listener: Listener = Listener(),  # noqa: B008 - frozen
) -> list[Sheet]:
    """Make the runs that are not there yet, and the tables asked for; paper.md shows these and those made before."""
    study.open_rows().claim({"scale": asdict(scale)})
    entries = {entry.name: entry for table in tables for entry in TABLES[table](scale)}
    run_study(replace(study, entries=tuple(entries.values())), listener)
    rows = study.open_rows()
    for table in tables:
        if not rows.about(table, "table"):
            rows.add("table", table, {})
    sheets = {table: compose(table, scale, study, rows) for table in TABLES if rows.about(table, "table")}
    for sheet in sheets.values():
        if sheet.figure:
            write_text(study.out / f"{sheet.table}.svg", svg_file(sheet.figure))
    times = [row["train_seconds"] for row in rows.rows if row["kind"] == "run" and "failed" not in row]
    source = f"The paper: {published()['source']} ({published()['setup']})"
    foot = [setup(scale, study), f"{machine()}; {len(times)} runs, {duration(sum(times))} of training.", source]
    parts = ["# The paper's evaluation", *(sheet.markdown() for sheet in sheets.values()), "---", *foot]
    write_text(study.out / "paper.md", "\n\n".join(parts) + "\n")
    return [sheets[table] for table in tables]


def setup(scale: PaperScale, study: Study) -> str:
    """How our numbers were made, in one paragraph."""
    epochs = f"{scale.epochs} epochs in batches of {scale.batch_size}" if scale.epochs else "published hyper-parameters"
    left_out = f" ({scale.held_out} training images left out)" if scale.held_out else ""
    return (
        f"{study.name}: {scale.network}, {epochs}{left_out}, seed {scale.seed} (n = 1). Percent: clean accuracy on all "
        f"test images; UAP attack and certified UAP accuracy on the first {scale.images} in groups of {GROUP} in data "
        f"set order, the same verifier for all (at most {scale.proof_seconds:g} s of search and refinement per group). "
        f"The standard error of a share of {scale.images} images is up to {50 / math.sqrt(scale.images):.1f} points: "
        "differences below two of them mean nothing."
    )


def compose(table: str, scale: PaperScale, study: Study, rows: StudyRows) -> Sheet:
    """A table from rows, with the paper's values."""
    theirs, entries = published()["tables"][table], TABLES[table](scale)
    results = [result_of(entry, rows) for entry in entries]
    shown = [table_row(table, entry, result) for entry, result in zip(entries, results, strict=True)]
    figure = None
    if table in SWEEPS:
        along, label = next(iter(theirs["columns"].items()))
        figure = sweep_figure(table, label, [row[along] for row in shown], shown)
    if table == "figure-loss":
        losses = {} if results[0].error else _losses(entries[0], study, rows)
        shown = [{"loss": name, "mean": f"{sum(each) / len(each):.4f}"} for name, each in losses.items()]
        figure = loss_figure(table, losses) if losses else None
    notes = tuple(note.format(focus=scale.focus, images=scale.images) for note in theirs["notes"])
    title = f"{theirs['title']} ({theirs['where']})"
    return Sheet(table, title, theirs["columns"], shown, notes, missing_of(results), figure)


def table_row(table: str, entry: Entry, result: StudyResult) -> Row:
    """What a table says of a run, ours and theirs."""
    theirs = published_row(table, entry.source)
    minutes, hours = theirs.get("training_minutes"), theirs.get("certification_hours")
    row = {
        **entry.source,
        "title": NAMES.get(entry.source["method"], entry.source["method"].upper()),
        "published_clean": theirs.get("clean"),
        "published_certified": theirs.get("certified"),
        "published_training": None if minutes is None else duration(60 * minutes),
        "published_image": None if hours is None else 3600 * hours / 10_000,
    }
    if result.error:
        return row
    [proof] = result.proofs
    return row | {
        "clean": result.run["clean"],
        "certified": proof["certified"],
        "uap": result.uap,
        "train_seconds": result.run["train_seconds"],
        "training": duration(result.run["train_seconds"]),
        "certification": duration(proof["seconds"]),
        "image_seconds": proof["seconds"] / proof["images"],
    }


def _losses(entry: Entry, study: Study, rows: StudyRows) -> dict[str, list[float]]:
    """Figure 4: what its boxes cost a network over the steps of an epoch, computed once and kept as a row."""
    kept = [row for row in rows.about(entry.name, "losses") if row["config"] == to_dict(entry.config)]
    if not kept:
        network, device = load_run(study.out / entry.name).network, pick_device(study.device)
        losses = last_epoch_losses(network, entry.config, study.load(entry), device)
        kept = [rows.add("losses", entry.name, {"config": to_dict(entry.config), **losses})]
    return {label: kept[-1][name] for name, label in LOSSES.items()}
