"""A run folder as plain values, whatever state it is in: finished, still going, damaged, or empty."""

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citrus.certify.result import ALONE, Certification, GroupResult
from citrus.certify.run_folder import read_rows
from citrus.errors import CitrusError
from citrus.files import parse_object, read_lines
from citrus.inputs import format_eps
from citrus.report.uap import Perturbed, read_perturbed

PARTS = ("config.json", "env.json", "metrics.jsonl", "summary.json", "certify", "uap", "checkpoints")

# What the report reads of objects in files, by its kind; what else they hold is only listed.
TEXTS = ("data", "network", "grouping", "verifier")
TABLES = ("method", "stage_seconds")
COUNTS = ("epochs", "group_size", "images", "attacked_images", "pgd_steps")
PERCENTAGES = ("clean", "ibp_certified", "pgd", "universal")
PER_EPOCH = ("epoch", "lr", "loss", "clean_loss", "accuracy", "validation_clean", "validation_ibp")
NUMBERS = ("eps", "seconds", "training_seconds", *PERCENTAGES, *PER_EPOCH)
EVALUATION = ("eps", "group_size", "images", "attacked_images", "pgd_steps", *PERCENTAGES)
"""What a summary of training and a file of `citrus attack` must hold."""


@dataclass(frozen=True)
class Missing:
    """Something that the report cannot show, and the command that would make it."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Certified(Certification):
    """A certification as its rows tell it; of an unfinished one `images` counts those that were looked at so far."""

    seconds: float = 0.0
    so_far: str = ""
    """Of an unfinished one, how many images of how many were looked at."""

    @property
    def setting(self) -> str:
        return f"eps {format_eps(self.eps)}, N = {self.group_size}"

    @property
    def stages(self) -> Counter[str]:
        """Images by the stage that proved them."""
        return sum((Counter(row.stages) for row in self.rows), Counter())

    @property
    def settled(self) -> dict[str, int]:
        """Every image once: by the stage that proved it, or by what became of it."""
        others = {name: images for name, images in self.images_by_outcome().items() if name != "certified"}
        return {**self.stages, **others}

    @property
    def alone(self) -> float:
        """Percent of images that are proved one by one, without their group."""
        return min(100 * sum(self.stages[name] for name in ALONE) / self.images, self.certified)


@dataclass(frozen=True)
class Record:
    """Everything that is known about one run."""

    name: str
    prefix: str
    """Its name before what is said of it, "" where the report is about one run only."""
    path: Path
    config: dict[str, Any]
    env: dict[str, Any]
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    certifications: list[Certified]
    attacks: list[dict[str, Any]]
    perturbations: list[Perturbed]
    missing: list[Missing]

    @property
    def eps(self) -> float | None:
        """The radius that the run is about."""
        known = [values["eps"] for values in (self.config, self.summary) if "eps" in values]
        return next(iter([*known, *(c.eps for c in self.certifications)]), None)

    @property
    def method(self) -> str:
        return str(self.config.get("method", {}).get("name", ""))

    @property
    def headline(self) -> Certified | None:
        """What the run is judged by: nearest to its own eps, finished, of more than one image, with most images."""

        def rank(c: Certified) -> tuple[object, ...]:
            own = c.group_size == self.config.get("group_size", 5)
            far = abs(c.eps - (self.eps or 0.0))
            return (-far, not c.so_far, c.group_size > 1, own, c.verifier == "citrus", c.images)

        return max(self.certifications, key=rank, default=None)

    @property
    def measured(self) -> dict[str, Any]:
        """What training measured, else an attack at the run's eps, else any attack."""
        own_first = sorted(self.attacks, key=lambda attack: attack.get("eps") != self.eps)
        return self.summary or next(iter(own_first), {})

    @property
    def training_seconds(self) -> float | None:
        so_far = sum(row.get("seconds", 0.0) for row in self.metrics) or None
        return self.summary.get("training_seconds", so_far)


def read_runs(paths: list[Path]) -> list[Record]:
    """Every folder once, under the shortest names that tell them apart."""
    folders = {path.resolve(): path for path in paths}
    depth = 1
    while len({place.parts[-depth:] for place in folders}) < len(folders):
        depth += 1
    return [_read_run(path, "/".join(place.parts[-depth:]), len(folders) > 1) for place, path in folders.items()]


def _read_run(path: Path, name: str, several: bool) -> Record:
    """Read what there is; what there is not ends up in `missing`."""
    missing: list[Missing] = []
    remedy = "give the folder that `citrus train` or `citrus certify` wrote, such as runs/quickstart"
    if not path.is_dir():
        known = f"{path} is a file, not a run folder" if path.exists() else f"There is no run folder {path}"
        raise CitrusError(f"{known}: {remedy}.")
    config, env = _object(path / "config.json", missing), _object(path / "env.json", missing)
    summary = _object(path / "summary.json", missing, *EVALUATION)
    lines, broken = read_lines(path / "metrics.jsonl")
    metrics = [row for row in lines if _fits(row, "epoch")]
    _tell_broken("metrics.jsonl", broken + len(lines) - len(metrics), missing)
    certifications = _certifications(path, missing)
    if not certifications and not _is_empty(path) and not _is_trained(path):
        raise CitrusError(f"{path} is not a run folder (it holds none of {', '.join(PARTS)}): {remedy}.")
    attacks = [_object(file, missing, *EVALUATION) for file in sorted(path.glob("uap/*.json"))]
    record = Record(
        name=name,
        prefix=f"{name}: " if several else "",
        path=path,
        config=config,
        env=env,
        summary=summary,
        metrics=metrics,
        certifications=certifications,
        attacks=[values for values in attacks if values],
        perturbations=_perturbations(path, missing),
        missing=missing,
    )
    missing += _absent(record)
    return record


def _is_empty(path: Path) -> bool:
    """But for a report."""
    return all(file.name in ("report.html", "report.md") for file in path.iterdir())


def _is_trained(path: Path) -> bool:
    """Whether it is more than a folder of certifications."""
    return any((path / part).exists() for part in PARTS)


def _object(path: Path, missing: list[Missing], *needed: str) -> dict[str, Any]:
    """What a JSON file holds, with the fields that are needed; nothing where it is not there, or damaged."""
    if not path.is_file():
        return {}
    values = parse_object(path.read_text(encoding="utf-8", errors="replace"))
    if values is not None and _fits(values, *needed):
        return values
    missing.append(Missing(f"{path.name} is damaged and left out."))
    return {}


def _fits(values: dict[str, Any], *needed: str) -> bool:
    """Whether an object has the fields that are needed, and all that the report reads is what Citrus would write."""
    texts, tables, counts, numbers = (
        [values[name] for name in names if name in values] for names in (TEXTS, TABLES, COUNTS, NUMBERS)
    )
    return (
        values.keys() >= set(needed)
        and all(isinstance(value, str) for value in texts)
        and all(isinstance(value, dict) for value in tables)
        and all(type(value) is int and 0 < value < 1e300 for value in counts)
        and all(type(value) in (int, float) and abs(value) < 1e300 for value in numbers)
    )


def _tell_broken(file: str, lines: int, missing: list[Missing]) -> None:
    if lines:
        are = "one line is" if lines == 1 else f"{lines} lines are"
        missing.append(Missing(f"{file}: {are} half-written or damaged and left out."))


def _certifications(run: Path, missing: list[Missing]) -> list[Certified]:
    """What `citrus certify` wrote of a run, or into a folder that holds nothing else: VERIFIER-EPS-nN-GROUPING.jsonl,
    one row per group, and a .json summary at its end."""
    found = []
    for path in (*sorted(run.glob("certify/*.jsonl")), *sorted(run.glob("*.jsonl"))):
        asked, rows, broken = read_rows(path)
        if _fits(asked, "eps", "group_size", "images", "grouping", "verifier"):
            _tell_broken(path.name, broken, missing)
            result = _certified(asked, rows, _object(path.with_suffix(".json"), missing))
            if result.so_far:
                missing.append(Missing(f"{path.stem} is not finished: {result.so_far}."))
            if result.images:
                found.append(result)
        elif path.parent != run:  # beside a run lies something else
            missing.append(Missing(f"certify/{path.name} is damaged and left out."))
    return sorted(found, key=lambda c: (c.eps, c.group_size, c.verifier, c.grouping))


def _certified(asked: dict[str, Any], rows: list[GroupResult], summary: dict[str, Any]) -> Certified:
    seen = sum(len(row.index) for row in rows)
    if asked["grouping"] == "correct":  # no group holds a misclassified image: all up to the last of a group count
        last = max((place for row in rows for place in row.index), default=-1)
        seen = asked["images"] if summary else last + 1
    return Certified(
        rows=tuple(rows),
        images=seen,
        **{name: asked[name] for name in ("eps", "group_size", "grouping", "verifier")},
        stage_seconds={name: x for name, x in summary.get("stage_seconds", {}).items() if isinstance(x, float)},
        seconds=summary.get("seconds", sum(row.seconds for row in rows)),
        so_far="" if summary else f"{seen} of {asked['images']} images so far",
    )


def _perturbations(run: Path, missing: list[Missing]) -> list[Perturbed]:
    found = []
    for file in sorted(run.glob("uap/*.safetensors")):
        try:
            found.append(read_perturbed(file))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError):
            eps = shlex.quote(file.stem.replace("-", "/"))
            said = f"uap/{file.name} is damaged and left out; this makes it anew:"
            missing.append(Missing(said, f"citrus attack {shlex.quote(str(run))} --eps {eps}"))
    return found


def _absent(record: Record) -> list[Missing]:
    """What a run of its age ought to have and has not; a command is named where it can work already."""
    run, found = shlex.quote(str(record.path)), []
    if _is_empty(record.path):
        return [Missing("The folder is empty. This starts a run in it:", f"citrus train quickstart --out {run}")]
    trained = _is_trained(record.path)
    if trained:
        found += [Missing(f"{name} is not there.") for name in PARTS[:2] if not (record.path / name).exists()]
    if record.config and not record.summary:
        done = f"{len(record.metrics)} of {record.config.get('epochs')} epochs"
        after = f"Training is at {done}; accuracies follow after the last one. If it no longer runs:"
        found.append(Missing(after, f"citrus train --resume --out {run}"))
    if trained and not record.metrics:
        found.append(Missing("No epoch is finished yet, so there are no training curves."))
    has_network = (record.path / "model.safetensors").exists()
    if not record.certifications:
        found.append(Missing("Nothing is certified yet.", f"citrus certify {run}" if has_network else ""))
    if trained and not record.perturbations:
        found.append(Missing("There is no universal perturbation.", f"citrus attack {run}" if has_network else ""))
    return found
