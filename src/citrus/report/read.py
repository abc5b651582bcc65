"""A run folder as plain values, whatever state it is in: finished, still going, of an older version, or empty."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from citrus.errors import CitrusError
from citrus.files import load_tensors
from citrus.report.certifications import Certified, read_certifications
from citrus.report.files import count, number, read_lines, read_object, text

PARTS = ("config.json", "env.json", "metrics.jsonl", "summary.json", "certify", "uap", "checkpoints")


@dataclass(frozen=True)
class Evaluated:
    """What training or `citrus attack` measured: percentages, None where a file does not say."""

    file: str = ""
    eps: float | None = None
    images: int | None = None
    clean: float | None = None
    ibp_certified: float | None = None
    attacked_images: int | None = None
    pgd: float | None = None
    pgd_steps: int | None = None
    universal: float | None = None
    group_size: int | None = None


@dataclass(frozen=True)
class Perturbed:
    """One file of uap/: the perturbation of the group that suffers most, and what it does to every attacked image."""

    file: str
    eps: float
    group_size: int
    classes: tuple[str, ...]
    labels: Tensor
    clean: Tensor
    fooled: Tensor
    perturbed: Tensor
    delta: Tensor
    """(C, H, W)"""
    shown: Tensor
    """(k,) places of the images that are kept"""
    images: Tensor
    """(k, C, H, W)"""

    def class_name(self, label: int) -> str:
        return self.classes[label] if label < len(self.classes) else str(label)

    @property
    def falls(self) -> Tensor:
        """(n,): right without the perturbation, wrong with it."""
        return (self.clean == self.labels) & self.fooled


@dataclass(frozen=True)
class Missing:
    """Something that the report cannot show, and the command that would make it."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Record:
    """Everything that is known about one run."""

    name: str
    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    summary: Evaluated | None = None
    attacks: list[Evaluated] = field(default_factory=list)
    training_seconds: float | None = None
    certifications: list[Certified] = field(default_factory=list)
    perturbations: list[Perturbed] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    """Pictures of perturbations whose file is of an older version, as PNG."""
    missing: list[Missing] = field(default_factory=list)

    @property
    def eps(self) -> float | None:
        """The radius that the run is about."""
        first = self.certifications[0].eps if self.certifications else None
        known = (number(self.config, "eps"), self.summary.eps if self.summary else None, first)
        return next((eps for eps in known if eps is not None), None)

    @property
    def method(self) -> str:
        method = self.config.get("method")
        return text(method, "name") if isinstance(method, dict) else ""

    @property
    def epochs(self) -> int:
        """Epochs that are done."""
        return len(self.metrics)


def read_runs(paths: list[Path]) -> list[Record]:
    """Every folder once, under the shortest names that tell them apart."""
    folders: dict[Path, Path] = {}
    for path in paths:
        _check_folder(path)
        folders.setdefault(path.resolve(), path)
    depth = 1
    while len({place.parts[-depth:] for place in folders}) < len(folders):
        depth += 1
    return [read_run(path, "/".join(place.parts[-depth:])) for place, path in folders.items()]


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


def read_run(path: Path, name: str) -> Record:
    """Read what there is; what there is not ends up in `missing`."""
    missing: list[Missing] = []
    config, env, summary = (_json(path / f"{part}.json", missing) for part in ("config", "env", "summary"))
    metrics, broken = read_lines(path / "metrics.jsonl")
    if broken:
        missing.append(Missing(f"metrics.jsonl: {_lines(broken)} half-written or damaged and left out."))
    certifications, unusable = read_certifications(path)
    for file in unusable:
        missing.append(Missing(f"certify/{file} is damaged or of a version that cannot be read, and left out."))
    for found in certifications:
        if found.broken_lines:
            missing.append(
                Missing(f"{found.file}.jsonl: {_lines(found.broken_lines)} half-written or damaged and left out.")
            )
    perturbations, pictures = _perturbations(path, missing)
    values = [(f.name, read_object(f)) for f in sorted((path / "uap").glob("*.json"))]
    seconds = [number(row, "seconds") or 0.0 for row in metrics]
    record = Record(
        name=name,
        path=path,
        config=config,
        env=env,
        metrics=metrics,
        summary=_evaluated("summary.json", summary) if summary else None,
        attacks=[_evaluated(f"uap/{file}", value) for file, value in values if value],
        training_seconds=number(summary, "training_seconds") or (sum(seconds) if seconds else None),
        certifications=certifications,
        perturbations=perturbations,
        pictures=pictures,
        missing=missing,
    )
    missing += _absent(record)
    return record


def _lines(number: int) -> str:
    return "one line is" if number == 1 else f"{number} lines are"


def _json(path: Path, missing: list[Missing]) -> dict[str, Any]:
    found = read_object(path)
    if found is None and path.exists():
        missing.append(Missing(f"{path.name} is damaged and left out."))
    return found or {}


def _evaluated(file: str, values: dict[str, Any]) -> Evaluated:
    return Evaluated(
        *(file, number(values, "eps"), count(values, "images"), number(values, "clean")),
        *(number(values, "ibp_certified"), count(values, "attacked_images"), number(values, "pgd")),
        *(count(values, "pgd_steps"), number(values, "universal"), count(values, "group_size")),
    )


def _perturbations(run: Path, missing: list[Missing]) -> tuple[list[Perturbed], dict[str, bytes]]:
    found, pictures = [], {}
    for file in sorted((run / "uap").glob("*.safetensors")):
        try:
            found.append(_perturbed(file))
            continue
        except CitrusError as error:
            missing.append(Missing(str(error)))
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError):
            eps = file.stem.replace("-", "/")
            command = f"citrus attack {shlex.quote(str(run))} --eps {shlex.quote(eps)}"
            older = f"uap/{file.name} is of an older version and does not say which images fall; attack again to see."
            missing.append(Missing(older, command))
        picture = file.with_suffix(".png")
        if picture.is_file() and (data := picture.read_bytes()).startswith(b"\x89PNG\r\n\x1a\n"):
            pictures[file.stem] = data
    return found, pictures


def _perturbed(file: Path) -> Perturbed:
    tensors, header = load_tensors(file)
    names = ("labels", "clean", "fooled", "perturbed", "groups")
    labels, clean, fooled, perturbed, groups = (tensors[name].flatten() for name in names)
    shown, images = tensors["shown"].long(), tensors["images"].float()
    delta = tensors["delta"][groups[shown[0]]].float()
    classes = tuple(str(name) for name in header["classes"])
    if (
        images.shape[1:] != delta.shape
        or len(delta) not in (1, 3)
        or len({len(t) for t in (labels, clean, fooled, perturbed)}) != 1
    ):
        raise ValueError(f"{file} holds images and perturbations that do not fit together")
    size, eps = int(header["group_size"]), float(header["eps"])
    return Perturbed(
        *(f"uap/{file.name}", eps, size, classes, labels.long(), clean.long(), fooled.bool(), perturbed.long()),
        *(delta, shown, images.clamp(0, 1)),
    )


def _absent(record: Record) -> list[Missing]:
    """What a run of its age ought to have and has not; a command is named where it can work already."""
    run, found = shlex.quote(str(record.path)), []
    if _is_empty(record.path):
        return [Missing("The folder is empty. This starts a run in it:", f"citrus train quickstart --out {run}")]
    trained = any((record.path / part).exists() for part in PARTS)
    if trained:
        found += [Missing(f"{name} is not there.") for name in PARTS[:2] if not (record.path / name).exists()]
    if record.config and record.summary is None:
        done = f"{record.epochs} of {count(record.config, 'epochs')} epochs"
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
    if trained and not record.perturbations and not record.pictures:
        found.append(Missing("There is no universal perturbation.", f"citrus attack {run}" if has_network else ""))
    return found
