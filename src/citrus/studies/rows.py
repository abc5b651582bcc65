"""What a study is made of: named configurations, rows about them, and what the rows say of each.

Rows are JSON, one line per finished thing, appended when it is finished and read by the same module.

Every row has `kind` (run, certification, ...), `study`, `name`, `time` and `environment`: the id of the line of
environments.jsonl, beside the file, that says on which machine and with which versions it was made. A row with `failed`
says why a thing could not be made. An id is a hash of what it names, so that files of rows may be joined.
"""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from citrus.certify import CertifySettings
from citrus.data import Splits, load
from citrus.errors import CitrusError
from citrus.files import append_line, locked, read_lines
from citrus.training import TrainConfig, environment, to_dict

Row = dict[str, Any]
ENVIRONMENTS = "environments.jsonl"
TEXTS = ("id", "kind", "study", "name", "failed", "note")
NUMBERS = ("train_seconds", "certified", "group_size", "images")
"""What tables do arithmetic with."""


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, none where there is no file; a last line that a crash cut short is left out."""
    rows, broken = read_lines(path)
    cut_short = broken > 0 and not path.read_bytes().endswith(b"\n")
    if broken > cut_short or not all(map(_is_row, rows)):
        raise CitrusError(f"{path} holds a line that is no row: repair it, or move the file away.")
    return rows


def _is_row(row: Row) -> bool:
    """Whether an environment has its id, and another row what it is about, in the types that tables are made of."""
    needed = ("id",) if "id" in row else ("kind", "study", "name")
    texts = [row.get(name, "") for name in TEXTS if name in needed or name in row]
    numbers = [row[name] for name in NUMBERS if name in row]
    return (
        row.keys() >= set(needed)
        and all(isinstance(text, str) for text in texts)
        and all(type(number) in (int, float) and abs(number) < 1e300 for number in numbers)
        and isinstance(row.get("set", {}), dict)
    )


class StudyRows:
    """The rows of one study, in a file to which it appends."""

    def __init__(self, path: Path, study: str) -> None:
        self.path, self.study = path, study
        self.rows = read_rows(path)

    def about(self, name: str, kind: str = "") -> list[Row]:
        """What was written about an entry of this study, in order."""
        own = (row for row in self.rows if (row.get("study"), row.get("name")) == (self.study, name))
        return [row for row in own if not kind or row["kind"] == kind]

    def add(self, kind: str, name: str, values: Row) -> Row:
        """Append a row; it is on the disk when this returns."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        head = {"kind": kind, "study": self.study, "name": name, "environment": self.environment, "time": now}
        row: Row = json.loads(json.dumps(head | values))
        append_line(self.path, row)
        self.rows.append(row)
        return row

    def claim(self, asked: Row) -> None:
        """A file belongs to one question, which its first row names: another one is refused."""
        asked = json.loads(json.dumps({"study": self.study, **asked}))
        with locked(self.path.parent):
            self.rows = read_rows(self.path)
            kept = next((row for row in self.rows if row["kind"] == "study"), None) or self.add("study", "", asked)
        changed = [name for name, value in asked.items() if kept.get(name) != value]
        if changed:
            raise CitrusError(
                f"{self.path.parent} holds another study ({', '.join(changed)} differ): choose another --out."
            )

    @cached_property
    def environment(self) -> str:
        """The id of where this runs, which is then known beside the file."""
        found = {name: value for name, value in environment().items() if name not in ("started", "command")}
        name, path = environment_id(found), self.path.with_name(ENVIRONMENTS)
        if all(row.get("id") != name for row in read_rows(path)):
            append_line(path, {"id": name, **found})
        return name


def environment_id(values: Row) -> str:
    """Short for all values of an environment: the same machine, versions and commit have the same id."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def machine() -> str:
    """Where this runs, in a few words."""
    found = environment()
    threads = f"{found['threads']} thread{'s'[: found['threads'] > 1]}"
    return f"{found['gpu'] or found['cpu']}, {threads}, torch {found['torch']}"


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
    certified = tuple(proofs.get(asked_of(settings, entry.images), {}) for settings in entry.proofs)
    if run and all(certified):
        return StudyResult(entry.name, run, certified)
    return StudyResult(entry.name, error=about[-1].get("failed", "not finished") if about else "not begun")


def finished(entry: Entry, about: list[Row]) -> tuple[Row, dict[tuple[Any, ...], Row]]:
    """The run of this very configuration, and the certifications of its network by what was asked."""
    good = [row for row in about if "failed" not in row]
    runs = [row for row in good if row["kind"] == "run" and row["config"] == to_dict(entry.config)]
    return (runs or [{}])[-1], {asked_of(row, row["images"]): row for row in good if row["kind"] == "certification"}


def missing_of(results: Sequence[StudyResult]) -> tuple[str, ...]:
    """What could not be made, and why."""
    return tuple(f"{result.name}: {result.error}" for result in results if result.error)


def asked_of(settings: CertifySettings | Row, images: int) -> tuple[Any, ...]:
    """What tells the certifications of a network apart, of so many images."""
    values = settings if isinstance(settings, dict) else vars(settings)
    size = values["group_size"]
    return "all" if size == "all" or size >= images else size, values["grouping"], values["verifier"]


def same_groups(run: Row, proof: Row) -> bool:
    """The attack after training and a certification saw the same images in the same groups."""
    attack = (run["attacked_images"], run["config"]["group_size"], "dataset")
    return attack == (proof["images"], proof["group_size"], proof["grouping"])
