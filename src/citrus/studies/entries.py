"""What a study is made of: named configurations, and what the rows say of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from citrus.certify import CertifySettings
from citrus.data import Splits, load
from citrus.studies.rows import Row, StudyRows
from citrus.training import TrainConfig, to_dict


@dataclass(frozen=True)
class Entry:
    """A named configuration, and how its network is measured."""

    name: str
    config: TrainConfig
    proofs: tuple[CertifySettings, ...] = ()
    images: int = 1000
    """Certified are the first so many."""
    on: Literal["test", "validation"] = "test"
    """Images that the network is measured on; held-out training images leave the test set unseen."""
    source: Row = field(default_factory=dict)
    """Where the configuration comes from, such as a recipe and what is set in it: part of every row."""


@dataclass(frozen=True)
class Study:
    """Entries in a folder, which holds a run folder for each, and rows.jsonl."""

    name: str
    out: Path
    entries: tuple[Entry, ...] = ()
    data_dir: str | None = None
    device: str = "auto"
    workers: int = 1
    """Entries at a time, in processes of their own."""
    deadline: float = math.inf
    """By `time.time()`: no entry and no epoch begins later."""

    def open_rows(self) -> StudyRows:
        return StudyRows(self.out / "rows.jsonl", self.name)

    def load(self, entry: Entry) -> Splits:
        """Data whose test part is what the network is measured on; nothing else is looked at meanwhile."""
        splits = load(entry.config.data, data_dir=self.data_dir, validation=entry.config.validation)
        test = splits.test if entry.on == "test" else splits.validation
        return replace(splits, test=test, validation=splits.validation.subset([]))


@dataclass(frozen=True)
class StudyResult:
    """What the rows of an entry say together; `error` says why there are none."""

    name: str
    run: Row = field(default_factory=dict)
    proofs: tuple[Row, ...] = ()
    error: str = ""

    @property
    def uap(self) -> float:
        """Percent that universal attacks leave: the one after training, and the verifier's on the same groups."""
        attacked = [proof["attacked"] for proof in self.proofs if same_groups(self.run, proof)]
        return float(min([self.run["universal"], *attacked]))

    @property
    def pgd(self) -> float:
        """What a shared perturbation fools, one of its own fools as well."""
        return float(min(self.run["pgd"], self.uap))

    @property
    def seconds(self) -> float:
        """Of training, measuring and certification together."""
        proving = sum(proof["seconds"] for proof in self.proofs)
        return float(self.run["train_seconds"] + self.run["measure_seconds"] + proving)


def result_of(entry: Entry, rows: StudyRows) -> StudyResult:
    about = rows.about(entry.name)
    run, proofs = finished(entry, about)
    certified = tuple(proofs.get(asked_of(settings), {}) for settings in entry.proofs)
    if run and all(certified):
        return StudyResult(entry.name, run, certified)
    return StudyResult(entry.name, error=about[-1].get("failed", "not finished") if about else "not begun")


def finished(entry: Entry, about: list[Row]) -> tuple[Row, dict[tuple[Any, ...], Row]]:
    """The run of this very configuration, and the certifications of its network by what was asked."""
    good = [row for row in about if "failed" not in row]
    runs = [row for row in good if row["kind"] == "run" and row["config"] == to_dict(entry.config)]
    return (runs or [{}])[-1], {asked_of(row): row for row in good if row["kind"] == "certification"}


def missing_of(results: Sequence[StudyResult]) -> tuple[str, ...]:
    """What could not be made, and why."""
    return tuple(f"{result.name}: {result.error}" for result in results if result.error)


def asked_of(settings: CertifySettings | Row) -> tuple[Any, ...]:
    """What tells the certifications of a network apart."""
    values = settings if isinstance(settings, dict) else vars(settings)
    return values["group_size"], values["grouping"], values["verifier"]


def same_groups(run: Row, proof: Row) -> bool:
    """The attack after training and a certification saw the same images in the same groups."""
    attack = (run["attacked_images"], run["config"]["group_size"], "dataset")
    return attack == (proof["images"], proof["group_size"], proof["grouping"])
