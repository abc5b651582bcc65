"""What a run folder holds, without what time decides: the same for a disturbed run and one that was not."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from citrus.files import load_tensors, read_lines

TIMES = ("seconds", "images_per_second", "train_seconds", "measure_seconds", "training_seconds", "stage_seconds")
TIMES += ("time", "memory_gb", "environment", "metrics")
ROW = ("kind", "name", "epoch", "group", "group_size")
"""What tells the rows of a file apart."""


@dataclass(frozen=True)
class Difference:
    """Between a disturbed folder and the undisturbed one."""

    lost: int = 0
    doubled: int = 0
    differ: int = 0
    what: str = ""


def compare(out: Path, reference: Path, before: dict[Path, list[str]]) -> Difference:
    """Whether a folder holds what the undisturbed one does, and still what was finished `before`."""
    ours, theirs = contents(out), contents(reference)
    wrong = [str(name) for name in sorted(ours.keys() | theirs.keys()) if not same(ours.get(name), theirs.get(name))]
    lost, doubled = 0, 0
    for name in theirs.keys() & ours.keys():
        if name.suffix == ".jsonl":
            mine, wanted = Counter(map(identity, ours[name])), Counter(map(identity, theirs[name]))
            lost += (wanted - mine).total()
            doubled += (mine - wanted).total()
    for name, lines in before.items():
        kept = (out / name).read_text().splitlines() if (out / name).exists() else []
        lost += len(set(lines) - set(kept))
    return Difference(lost, doubled, len(wrong), ", ".join(wrong[:3]))


def contents(out: Path) -> dict[Path, Any]:
    """By the name of each file what it says."""
    found: dict[Path, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out)
        if path.suffix == ".safetensors":
            tensors, about = load_tensors(path)
            found[name] = tensors, timeless(about)
        elif path.suffix == ".jsonl" and name.name != "environments.jsonl":
            rows, broken = read_lines(path)
            rows = [timeless(row) for row in rows if "failed" not in row] + [{"broken": broken}] * (broken > 0)
            found[name] = sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
        elif path.suffix == ".json" and name.name != "env.json":
            found[name] = timeless(json.loads(path.read_text()))
        elif path.suffix == ".part":
            found[name] = "left over"
    return found


def timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if not isinstance(value, dict):
        return value
    study = value.get("kind") == "certification"
    left_out = {*TIMES, *(("stages",) if study else ())}  # seconds there, and images of each stage in other rows
    return {name: timeless(each) for name, each in value.items() if name not in left_out}


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ROW)


def same(ours: Any, theirs: Any) -> bool:
    if not (isinstance(ours, tuple) and isinstance(theirs, tuple)):
        return bool(ours == theirs)
    return (
        ours[0].keys() == theirs[0].keys()
        and all(torch.equal(ours[0][name], theirs[0][name]) for name in ours[0])
        and ours[1] == theirs[1]
    )


def finished(out: Path) -> dict[Path, list[str]]:
    """The rows that must stay as they are: no errors, and of metrics only those up to the checkpoint, since later ones
    come again."""
    return {path.relative_to(out): list(_lasting(path)) for path in out.rglob("*.jsonl")}


def _lasting(path: Path) -> Iterator[str]:
    checkpoint, last = path.parent / "checkpoints" / "last.safetensors", float("inf")
    if path.name == "metrics.jsonl":
        last = load_tensors(checkpoint)[1]["step"] if checkpoint.exists() else 0
    for line in path.read_text(errors="replace").split("\n")[:-1]:
        row = json.loads(line)
        if row.get("step", 0) <= last and row.get("verdict") != "error":
            yield line
