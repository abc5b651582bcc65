"""The paper's numbers, as transcribed from it in published.json with the number of each table and figure."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class PublishedRow:
    """One line of a table, accuracies in percent."""

    setting: str
    """Data set and eps, as recipes name them."""
    method: str
    tau_ratio: float | None = None
    group_size: int | None = None
    clean: float | None = None
    certified: float | None = None
    training_minutes: float | None = None
    certification_hours: float | None = None


@dataclass(frozen=True)
class PublishedTable:
    where: str
    """Its number in the paper."""
    note: str
    rows: tuple[PublishedRow, ...]

    def row(self, setting: str, method: str, **values: float | None) -> PublishedRow:
        """The line of a setting and method (and tau_ratio or group_size), or an empty one where the paper has none."""
        for row in self.rows:
            asked = {"setting": setting, "method": method, **values}
            if all(getattr(row, name) == value for name, value in asked.items()):
                return row
        return PublishedRow(setting, method)


@cache
def published(table: str) -> PublishedTable:
    """A table or figure by the name that `citrus bench paper --table` gives it."""
    found = _file()["tables"][table]
    return PublishedTable(found["where"], found["note"], tuple(PublishedRow(**row) for row in found["rows"]))


def source() -> str:
    """Which paper, and how its numbers were made."""
    return f"{_file()['source']} ({_file()['setup']})"


@cache
def _file() -> Any:
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
