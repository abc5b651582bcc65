"""JSON files as they are found: half-written, damaged, a stranger's. Nothing here raises for content."""

import math
from pathlib import Path
from typing import Any

from citrus.files import parse_object


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is missing, unreadable or something else."""
    try:
        return parse_object(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def number(values: Any, key: str) -> float | None:
    """A finite number in a JSON object, or None."""
    value = values.get(key) if isinstance(values, dict) else None
    try:
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return None
    return value if usable else None


def count(values: Any, key: str) -> int | None:
    """A whole number from 0 on in a JSON object, or None."""
    value = number(values, key)
    return int(value) if value is not None and value >= 0 and value == int(value) else None


def text(values: Any, key: str) -> str:
    """A string in a JSON object; "" where there is none."""
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, str) else ""
