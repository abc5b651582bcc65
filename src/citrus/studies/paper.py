"""The paper's evaluation: every table and figure by name, from shared runs, the published values beside ours.

    study = Study("paper-demo", Path("runs/paper-demo"))
    sheets = make_paper(SCALES["demo"], study, ["main", "ablation-tau"])

published.json is what the paper says, transcribed from it, and what its tables show.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from citrus.certify import CertifySettings
from citrus.console import duration
from citrus.files import write_text
from citrus.inputs import format_eps
from citrus.methods import Citrus
from citrus.recipes import recipe
from citrus.report.charts import svg_file
from citrus.studies.engine import NOBODY, Listener, run_study
from citrus.studies.losses import last_epoch_losses
from citrus.studies.methods import Contest, contestants
from citrus.studies.rows import Entry, Row, Study, StudyResult, StudyRows, machine, missing_of, result_of
from citrus.studies.sheets import Sheet, loss_figure, sweep_figure
from citrus.training import TrainConfig, load_run, pick_device, to_dict

GROUP = 5  # images that exchange perturbations in training, and that share one in certification, as in the paper
LARGEST_EXACT = 10  # in larger groups, which the paper does not have, an image meets a sample of the others
SAMPLED = 4  # of them, as many as in a group of 5, so that the cost no longer grows

CERTIFIED = ("ibp", "sabr", "taps", "citrus")
ADVERSARIAL = ("pgd", "uat", "cw_uat", "citrus")
NAMES = {"cw_uat": "CW-UAT", "citrus_si": "CITRUS + SI"}
LOSSES = {
    "same": "same-input box (SI)",
    "cross_sum": f"sum of the {GROUP - 1} cross-input boxes",
    "cross_max": "largest cross-input box",
}


@dataclass(frozen=True)
class Setting:
    """A data set and a radius."""

    data: str
    eps: float
    published: str
    """The paper's setting that stands beside it, as recipes name it."""

    def __str__(self) -> str:
        return f"{Path(self.data).stem} {format_eps(self.eps)}"


@dataclass(frozen=True)
class PaperScale:
    """How much is trained and certified."""

    network: str
    main: tuple[Setting, ...]
    adversarial: tuple[Setting, ...]
    focus: Setting
    """Where the ablations and the figure are made."""
    groups: tuple[int, ...]
    images: int
    """Test images that are attacked and certified, the first ones."""
    proof_seconds: float
    """Most seconds per group for the verifier's search and refinement."""
    taus: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    held_out: int = 0
    """Training images that are left out, to save time."""
    epochs: int | None = None
    """None: published hyper-parameters, else those of the `-cpu` recipes in so many epochs."""
    batch_size: int = 120
    """With `epochs`: many groups, as 120 is divisible by all their sizes."""
    lr: float = 5e-3
    """With `epochs`: higher than the recipes', which train longer."""
    seed: int = 0

    def entry(self, setting: Setting, method: str, tau_ratio: float = 0.0, group_size: int = GROUP) -> Entry:
        """A run, which tables that ask for the same one share; CITRUS is that of Algorithm 1."""
        config, name = self._config(setting, method), method
        source: Row = {"setting": str(setting), "published": setting.published, "method": method}
        if isinstance(config.method, Citrus):
            usual, sampled = config.method, group_size > LARGEST_EXACT
            tau = tau_ratio or usual.tau_ratio
            name += f"-tau{tau:g}" if tau != usual.tau_ratio else ""
            name += f"-group{group_size}" if group_size != GROUP else ""
            source |= {"tau_ratio": tau, "group": group_size, "boxes": SAMPLED if sampled else group_size - 1}
            partners = SAMPLED if sampled else 0
            own = type(usual)(tau_ratio=tau, group_size=group_size, partners=partners, attack=usual.attack)
            # The paper's batch is one group, so that it grows with it; a short training has larger ones of many groups.
            config = replace(config, method=own, batch_size=self.batch_size if self.epochs else group_size)
        settings = CertifySettings(group_size=GROUP, grouping="dataset", budget=self.proof_seconds, seed=self.seed)
        folder = str(setting).replace(" ", "-").replace("/", "-")
        return Entry(f"{folder}/{name}", config, (settings,), self.images, source=source)

    def entries(self, settings: Sequence[Setting], methods: Sequence[str]) -> list[Entry]:
        return [self.entry(setting, method) for setting in settings for method in methods]

    def _config(self, setting: Setting, method: str) -> TrainConfig:
        if self.epochs is None:
            config = recipe(f"{setting.published}-{method}")
        else:
            contest = Contest(setting.data, self.network, setting.eps, self.epochs, self.batch_size, methods=method)
            config = replace(contestants(contest)[method], lr=self.lr)
        return replace(config, test_images=self.images, group_size=GROUP, validation=self.held_out, seed=self.seed)


DIGITS = Setting("digits", 0.1, "mnist-0.1")
MNIST = Setting("mnist", 0.1, "mnist-0.1"), Setting("mnist", 0.3, "mnist-0.3")
CIFAR = Setting("cifar10", 2 / 255, "cifar10-2-255"), Setting("cifar10", 8 / 255, "cifar10-8-255")
TINY = Setting("tinyimagenet", 1 / 255, "tinyimagenet-1-255")

SCALES: dict[str, PaperScale] = {
    # Shows in a minute that every table and figure can be made, and the roughest differences between methods: only
    # certified training can be certified, and larger boxes cost clean accuracy. Its numbers are no results.
    "demo": PaperScale(
        network="smallcnn",
        main=(DIGITS,),
        adversarial=(DIGITS,),
        focus=DIGITS,
        taus=(0.3, 0.6, 0.9),
        groups=(2, 5, 20),
        images=20,
        proof_seconds=0.1,
        held_out=3200,
        epochs=5,
        batch_size=40,
        lr=1e-2,
    ),
    "cpu": PaperScale(
        network="convsmall",
        main=MNIST,
        adversarial=MNIST,
        focus=MNIST[0],
        groups=(2, 3, 5, 8, 10, 20, 60),
        images=500,
        proof_seconds=0.25,
        held_out=40_000,
        epochs=10,
    ),
    "full": PaperScale(
        network="cnn7",
        main=(*MNIST, *CIFAR, TINY),
        adversarial=CIFAR[1:],
        focus=CIFAR[1],
        groups=(2, 3, 4, 5, 6, 8, 10, 20, 50),
        images=10_000,
        proof_seconds=10.0,
    ),
}


TABLES: dict[str, Callable[[PaperScale], list[Entry]]] = {
    "main": lambda scale: scale.entries(scale.main, CERTIFIED),
    "adversarial": lambda scale: scale.entries(scale.adversarial, ADVERSARIAL),
    "ablation-tau": lambda scale: [scale.entry(scale.focus, "citrus", tau_ratio=tau) for tau in scale.taus],
    "ablation-batch": lambda scale: [scale.entry(scale.focus, "citrus", group_size=size) for size in scale.groups],
    "ablation-si": lambda scale: scale.entries([scale.focus], ("citrus", "citrus_si")),
    "figure-loss": lambda scale: scale.entries([scale.focus], ("citrus",)),
    "runtimes": lambda scale: scale.entries(scale.main, CERTIFIED),
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


def make_paper(scale: PaperScale, study: Study, tables: Sequence[str], listener: Listener = NOBODY) -> list[Sheet]:
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
