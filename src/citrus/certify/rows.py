"""Rows of a certification on disk: one line per group, appended as soon as it is known, and skipped on restart."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from citrus.certify.result import GroupResult, Verdict
from citrus.errors import CitrusError


class RowFile:
    """A .jsonl file: first what was asked (network, eps, images, settings), then one row per group."""

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self.path = path
        self.asked: dict[str, Any] = json.loads(json.dumps(asked))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(self.asked)
        lines = path.read_text().splitlines()
        before = self._parse(lines[0]) if lines else None
        if before != self.asked:
            changed = [k for k in self.asked if not before or before.get(k) != self.asked[k]]
            raise CitrusError(
                f"{path} holds rows of another question ({', '.join(changed)} differ): choose another --out or move it."
            )
        self.rows = [row for line in lines[1:] if (row := self._row(line)) is not None]

    def add(self, rows: tuple[GroupResult, ...]) -> None:
        for row in rows:
            self.rows.append(row)
            self._append(asdict(row))

    def _append(self, value: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _parse(line: str) -> dict[str, Any] | None:
        try:
            value = json.loads(line)
        except ValueError:  # cut short by a crash
            return None
        return value if isinstance(value, dict) else None

    def _row(self, line: str) -> GroupResult | None:
        value = self._parse(line)
        if value is None:
            return None
        return GroupResult(**{**value, "index": tuple(value["index"]), "verdict": Verdict(value["verdict"])})
