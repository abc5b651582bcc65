"""A run folder as plain values, whatever state it is in: finished, still going, damaged, or empty."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citrus.errors import CitrusError
from citrus.files import read_lines
from citrus.report.certifications import Certified, read_certifications
from citrus.report.files import count, number, read_object, text
from citrus.report.uap import Perturbed, read_perturbed

PARTS = ("config.json", "env.json", "metrics.jsonl", "summary.json", "certify", "uap", "checkpoints")


@dataclass(frozen=True)
class Missing:
    """Something that the report cannot show, and the command that would make it."""

    text: str
    command: str = ""


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
        first = self.certifications[0].eps if self.certifications else None
        known = (number(self.config, "eps"), number(self.summary, "eps"), first)
        return next((eps for eps in known if eps is not None), None)

    @property
    def method(self) -> str:
        return text(self.config.get("method"), "name")

    @property
    def headline(self) -> Certified | None:
        """What the run is judged by: nearest to its own eps, finished, of more than one image, with most images."""

        def rank(c: Certified) -> tuple[object, ...]:
            own = c.group_size == (count(self.config, "group_size") or 5)
            far = abs(c.eps - (self.eps or 0.0))
            return (-far, c.finished, c.group_size > 1, own, c.verifier == "citrus", c.images)

        return max(self.certifications, key=rank, default=None)

    @property
    def measured(self) -> dict[str, Any]:
        """What training measured, else an attack at the run's eps, else any attack."""
        own_first = sorted(self.attacks, key=lambda attack: number(attack, "eps") != self.eps)
        return self.summary or next(iter(own_first), {})

    @property
    def training_seconds(self) -> float | None:
        seconds = [number(row, "seconds") or 0.0 for row in self.metrics]
        return number(self.summary, "training_seconds") or (sum(seconds) if seconds else None)


def read_runs(paths: list[Path]) -> list[Record]:
    """Every folder once, under the shortest names that tell them apart."""
    folders: dict[Path, Path] = {}
    for path in paths:
        _check_folder(path)
        folders.setdefault(path.resolve(), path)
    depth = 1
    while len({place.parts[-depth:] for place in folders}) < len(folders):
        depth += 1
    return [_read_run(path, "/".join(place.parts[-depth:]), len(folders) > 1) for place, path in folders.items()]


def _check_folder(path: Path) -> None:
    remedy = "give the folder that `citrus train` or `citrus certify` wrote, such as runs/quickstart"
    if not path.exists():
        raise CitrusError(f"There is no run folder {path}: {remedy}.")
    if not path.is_dir():
        raise CitrusError(f"{path} is a file, not a run folder: {remedy}.")
    known = any((path / part).exists() for part in PARTS) or _is_empty(path)
    if not known and not read_certifications(path)[0]:
        raise CitrusError(f"{path} is not a run folder (it holds none of {', '.join(PARTS)}): {remedy}.")


def _is_empty(path: Path) -> bool:
    """But for a report."""
    return all(file.name in ("report.html", "report.md") for file in path.iterdir())


def _read_run(path: Path, name: str, several: bool) -> Record:
    """Read what there is; what there is not ends up in `missing`."""
    missing: list[Missing] = []
    config, env, summary = (_object(path / f"{part}.json", missing) for part in ("config", "env", "summary"))
    metrics, broken = read_lines(path / "metrics.jsonl")
    certifications, unusable = read_certifications(path)
    missing += [Missing(f"certify/{file} is damaged and left out.") for file in unusable]
    for file, lines in (("metrics.jsonl", broken), *((f"{c.file}.jsonl", c.broken) for c in certifications)):
        if lines:
            are = "one line is" if lines == 1 else f"{lines} lines are"
            missing.append(Missing(f"{file}: {are} half-written or damaged and left out."))
    attacks = [_object(file, missing) for file in sorted(path.glob("uap/*.json"))]
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


def _object(path: Path, missing: list[Missing]) -> dict[str, Any]:
    found = read_object(path)
    if found is None and path.exists():
        missing.append(Missing(f"{path.name} is damaged and left out."))
    return found or {}


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
    trained = any((record.path / part).exists() for part in PARTS)
    if trained:
        found += [Missing(f"{name} is not there.") for name in PARTS[:2] if not (record.path / name).exists()]
    if record.config and not record.summary:
        done = f"{len(record.metrics)} of {count(record.config, 'epochs')} epochs"
        after = f"Training is at {done}; accuracies follow after the last one. If it no longer runs:"
        found.append(Missing(after, f"citrus train --resume --out {run}"))
    if trained and not record.metrics:
        found.append(Missing("No epoch is finished yet, so there are no training curves."))
    for c in record.certifications:
        if not c.finished:
            found.append(Missing(f"{c.file} is not finished: {c.images} of {c.asked} images so far."))
    has_network = (record.path / "model.safetensors").exists()
    if not record.certifications:
        found.append(Missing("Nothing is certified yet.", f"citrus certify {run}" if has_network else ""))
    if trained and not record.perturbations:
        found.append(Missing("There is no universal perturbation.", f"citrus attack {run}" if has_network else ""))
    return found
