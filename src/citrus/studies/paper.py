"""The paper's evaluation: every table and figure by name, from shared runs, the published values beside ours.

    study = Study("paper-demo", Path("runs/paper-demo"))
    sheets = make_paper(SCALES["demo"], study, ["main", "ablation-tau"])

published.json is what the paper says, transcribed from it: numbers, claims, and what its tables show.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from citrus.console import duration
from citrus.files import write_text
from citrus.report.document import Figure
from citrus.report.standalone import svg_file
from citrus.studies.engine import Listener, Study, StudyResult, result_of, run_study
from citrus.studies.entries import Entry
from citrus.studies.findings import Finding, decide
from citrus.studies.losses import last_epoch_losses
from citrus.studies.rows import Row, StudyRows, machine
from citrus.studies.scales import GROUP, PaperScale
from citrus.studies.sheets import Sheet, loss_figure, sweep_figure
from citrus.training import load_run, to_dict
from citrus.training.run import pick_device

CERTIFIED = ("ibp", "sabr", "taps", "citrus")
ADVERSARIAL = ("pgd", "uat", "cw_uat", "citrus")
NAMES = {"cw_uat": "CW-UAT", "citrus_si": "CITRUS + SI"}
IDENTITY = {"setting": "published", "method": "method", "tau_ratio": "tau_ratio", "group_size": "group"}
"""What names a published row, and where an entry has the same."""
ACROSS = {"ablation-tau": ("tau_ratio", "tau / eps"), "ablation-batch": ("group", "group size")}
"""What the figures show accuracies against."""
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


@cache
def published() -> Any:
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def published_row(table: str, asked: Row) -> Row:
    """The paper's line of a method, and of a setting, tau or group size where it has several; empty if none."""
    rows = published()["tables"][table]["rows"]
    names = [name for name in IDENTITY if name != "setting" or len({row["setting"] for row in rows}) > 1]
    return next((row for row in rows if all(row[n] == asked.get(n) for n in names if n in row)), {})


def make_paper(scale: PaperScale, study: Study, tables: Sequence[str], listener: Listener | None = None) -> list[Sheet]:
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
        f"set order, the same verifier for all (at most {scale.proof_seconds:g} s of search and refinement per group)."
    )


def compose(table: str, scale: PaperScale, study: Study, rows: StudyRows) -> Sheet:
    """A table from rows, with the paper's values and claims."""
    theirs, entries = published()["tables"][table], TABLES[table](scale)
    results = [result_of(entry, rows) for entry in entries]
    shown = [table_row(table, entry, result) for entry, result in zip(entries, results, strict=True)]
    figure = None
    if table == "figure-loss":
        shown, findings, figure = _losses(entries[0], results[0], study, rows)
    else:
        findings = _findings(theirs["claims"], shown, results)
    if table in ACROSS:
        key, label = ACROSS[table]
        figure = sweep_figure(table, label, [row[key] for row in shown], shown, logarithmic=key == "group")
    batch = f"The paper's batch is one group; here all have {scale.batch_size} images, and only the groups differ."
    words = {
        "focus": scale.focus,
        "images": scale.images,
        "batch": batch if scale.epochs else "The batch is one group.",
    }
    return Sheet(
        table,
        f"{theirs['title']} ({theirs['where']})",
        theirs["columns"],
        tuple(shown),
        tuple(findings),
        tuple(note for note in (theirs["note"], theirs["ours"].format(**words)) if note),
        figure,
        tuple(f"{result.name}: {result.error}" for result in results if result.error),
    )


def table_row(table: str, entry: Entry, result: StudyResult) -> Row:
    """What a table says of a run, ours and theirs."""
    theirs = published_row(table, {name: entry.source.get(key) for name, key in IDENTITY.items()})
    minutes, hours = theirs.get("training_minutes"), theirs.get("certification_hours")
    row = {
        **entry.source,
        "title": NAMES.get(entry.source["method"], entry.source["method"].upper()),
        "tau": f"{entry.source.get('tau_ratio', 0):g}",
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


def _findings(claims: Sequence[Row], shown: Sequence[Row], results: Sequence[StudyResult]) -> list[Finding]:
    """Every claim in every setting."""
    found = []
    for setting in dict.fromkeys(row["setting"] for row in shown):
        each = [result for row, result in zip(shown, results, strict=True) if row["setting"] == setting]
        found += [decide(claim, each, setting) for claim in claims]
    return found


def _losses(
    entry: Entry, result: StudyResult, study: Study, rows: StudyRows
) -> tuple[list[Row], list[Finding], Figure | None]:
    """Figure 4: what its boxes cost a network, computed once and kept as a row."""
    claims = published()["tables"]["figure-loss"]["claims"]
    if result.error:
        return [], [decide(claim, [result]) for claim in claims], None
    kept = [row for row in rows.about(entry.name, "losses") if row["config"] == to_dict(entry.config)]
    if not kept:
        splits = entry.measured_on(study.load(entry.config.data, entry.config.validation))
        network = load_run(study.out / entry.name).network
        losses = last_epoch_losses(network, entry.config, splits, pick_device(study.device))
        kept = [rows.add("losses", entry.name, {"config": to_dict(entry.config), **losses})]
    means = {name: sum(kept[-1][name]) / len(kept[-1][name]) for name in LOSSES}
    shown = [{"loss": label, "mean": f"{means[name]:.4f}"} for name, label in LOSSES.items()]
    findings = []
    for claim in claims:
        ours, theirs = means[claim["of"]], means[claim["beside"]]
        evidence = f"{LOSSES[claim['of']]} {ours:.4f}, {LOSSES[claim['beside']]} {theirs:.4f}"
        findings.append(Finding(claim["claim"], "yes" if ours > claim["share"] * theirs else "no", evidence))
    return shown, findings, loss_figure("figure-loss", {label: kept[-1][name] for name, label in LOSSES.items()})
