"""What the report takes from a file: objects with the fields it needs, of the kinds that Citrus writes, or nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citrus.files import parse_object

# What the report reads of objects in files, by its kind; what else they hold is only listed.
TEXTS = ("data", "network", "grouping", "verifier", "arithmetic", "used")
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


def read_object(path: Path, missing: list[Missing], *needed: str) -> dict[str, Any]:
    """What a JSON file holds, with the fields that are needed; nothing where it is not there, or damaged."""
    if not path.is_file():
        return {}
    values = parse_object(path.read_text(encoding="utf-8", errors="replace"))
    if values is not None and fits(values, *needed):
        return values
    missing.append(Missing(f"{path.name} is damaged and left out."))
    return {}


def fits(values: dict[str, Any], *needed: str) -> bool:
    """Whether an object has the fields that are needed, and all that the report reads is what Citrus would write."""
    texts, tables, counts, numbers = (
        [values[name] for name in names if name in values] for names in (TEXTS, TABLES, COUNTS, NUMBERS)
    )
    return (
        values.keys() >= set(needed)
        and all(isinstance(value, str) for value in texts)
        and all(isinstance(value, dict) for value in tables)
        and all(type(value) is int and 0 < value < 1e300 for value in counts)
        and all(map(is_number, numbers))
    )


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def tell_broken(file: str, lines: int, missing: list[Missing]) -> None:
    if lines:
        are = "one line is" if lines == 1 else f"{lines} lines are"
        missing.append(Missing(f"{file}: {are} half-written or damaged and left out."))
