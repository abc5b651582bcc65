"""A plan: a file with a list of runs, each a recipe and what is set in it, and the table of what came out.

[{"name": "small boxes", "recipe": "quickstart", "set": {"method.tau_ratio": 0.4}}, ...]
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from citrus.certify import CertifySettings
from citrus.console import duration
from citrus.errors import CitrusError
from citrus.recipes import recipe
from citrus.studies.rows import Entry, Row
from citrus.studies.sheets import Sheet
from citrus.training import override

HIDDEN = ("validate_every", "memory_gb", "milestones", "validation", "warmup_epochs", "seed", "clip")  # of `set`


def read_plan(path: Path, certify: int = 0, on: str = "auto") -> tuple[Entry, ...]:
    """The entries of a plan, of whose networks so many images are certified in groups of 5 and of 20.

    On auto, a network is measured on held-out images where its run has some, else on test images.
    """
    proofs = tuple(CertifySettings(group_size=size, budget=1.0) for size in ((5, 20) if certify else ()))
    try:
        plan = [(str(each["name"]), each["recipe"], dict(each.get("set", {}))) for each in json.loads(path.read_text())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CitrusError(f"{path} is no list of runs with a name, a recipe and what is set: {error!r}.") from error
    if not all(isinstance(base, str) for _, base, _ in plan):
        raise CitrusError(f"{path} names a recipe by something else than a text.")
    if len({name for name, _, _ in plan}) < len(plan):
        raise CitrusError(f"{path} gives a name to two runs: each needs its own.")
    entries = []
    for name, base, changes in plan:
        if not name or Path(name).name != name or name.startswith("."):
            raise CitrusError(f"{name!r} is no name for a folder: choose another in {path}.")
        config = override(recipe(base), {key: str(value) for key, value in changes.items()})
        where: Any = ("validation" if config.validation else "test") if on == "auto" else on
        if where == "validation" and not config.validation:
            raise CitrusError(f"{name} holds out no images to be measured on: set validation, or measure on test.")
        source = {"recipe": base, "set": changes}
        entries.append(Entry(name, config, proofs, certify, where, source))
    return tuple(entries)


MEASURED = ("clean", "ibp", "single", "pgd", "universal", "attack1", "attack5", "attack20", "uap5", "uap20")


def runs_sheet(rows: Sequence[Row]) -> Sheet:
    """All runs among rows, planned and failed ones included, with their certifications."""
    proofs: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["kind"] == "certification" and row.keys() >= {"group_size", "certified", "images"}:
            text = f"N = {row['group_size']}: {row['certified']:.2f} of {row['images']}"
            proofs.setdefault((row["study"], row["name"]), []).append(text)
    shown = []
    for row in (row for row in rows if row["kind"] in ("run", "planned")):
        changed = [f"{key} {value}" for key, value in row.get("set", {}).items() if key not in HIDDEN]
        notes = [row[key] for key in ("failed", "note") if key in row] or [row["kind"]] * (row["kind"] == "planned")
        said = [*proofs.get((row["study"], row["name"]), []), *notes]
        time = duration(row["train_seconds"]) if "train_seconds" in row else None
        shown.append(row | {"changed": ", ".join(changed), "training": time, "said": "; ".join(said)})
    measured = [name for name in MEASURED if any(name in row for row in shown)]
    columns = {name: name for name in ("name", "recipe", "changed", "on", "training", *measured)}
    return Sheet("runs", "Runs", columns | {"said": "certified, notes"}, shown)
