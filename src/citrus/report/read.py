"""A run folder as plain values, whatever state it is in: finished, still going, damaged, or empty."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citrus.errors import CitrusError
from citrus.files import read_lines
from citrus.report.certifications import Certified, read_certifications
from citrus.report.targets import ShownTargets, read_targets
from citrus.report.uap import Perturbed, read_perturbed
from citrus.report.values import EVALUATION, Missing, fits, read_object, tell_broken

PARTS = ("config.json", "env.json", "metrics.jsonl", "summary.json", "certify", "uap", "checkpoints")


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
    targets: list[ShownTargets]
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
        """What the run is judged by: nearest to its own eps, finished, with most images that share one perturbation.

        Who prints one perturbation meets every input with it, so that all images together say most.
        """

        def rank(c: Certified) -> tuple[object, ...]:
            far = abs(c.eps - (self.eps or 0.0))
            return (-far, not c.so_far, c.shared, c.verifier == "citrus", c.arithmetic == "real", c.images, c.certified)

        return max(self.certifications, key=rank, default=None)

    @property
    def drawn(self) -> list[Perturbed]:
        """Perturbations by what they say of the run: nearest to its own eps, and of those that for all images first."""

        def rank(p: Perturbed) -> tuple[object, ...]:
            far = 0.0 if self.eps is None else abs(p.eps - self.eps)
            return (far, not p.for_all, -p.group_size)

        return sorted(self.perturbations, key=rank)

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
    config, env = read_object(path / "config.json", missing), read_object(path / "env.json", missing)
    summary = read_object(path / "summary.json", missing, *EVALUATION)
    lines, broken = read_lines(path / "metrics.jsonl")
    metrics = [row for row in lines if fits(row, "epoch")]
    tell_broken("metrics.jsonl", broken + len(lines) - len(metrics), missing)
    certifications = read_certifications(path, missing)
    if not certifications and not _is_empty(path) and not _is_trained(path):
        raise CitrusError(f"{path} is not a run folder (it holds none of {', '.join(PARTS)}): {remedy}.")
    attacks = [read_object(file, missing, *EVALUATION) for file in sorted(path.glob("uap/*.json"))]
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
        targets=read_targets(path, missing),
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


def _perturbations(run: Path, missing: list[Missing]) -> list[Perturbed]:
    """Of training and `citrus attack` in uap/, of certifications beside their rows."""
    found = []
    attacked, certified = sorted(run.glob("uap/*.safetensors")), sorted(run.glob("certify/*-uap.safetensors"))
    for file in (*attacked, *certified, *sorted(run.glob("*-uap.safetensors"))):
        try:
            found.append(read_perturbed(file))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError):
            said, eps = f"{file.relative_to(run)} is damaged and left out", shlex.quote(file.stem.replace("-", "/"))
            again = f"citrus attack {shlex.quote(str(run))} --eps {eps}" if file in attacked else ""
            missing.append(Missing(f"{said}; this makes it anew:" if again else f"{said}.", again))
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
