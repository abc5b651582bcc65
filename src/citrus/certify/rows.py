"""Rows of a certification on disk: one line per group, appended as soon as it is known, and skipped on restart."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from citrus.certify.result import GroupResult, Verdict
from citrus.errors import CitrusError
from citrus.files import write_text


class RowFile:
    """A .jsonl file: first what was asked (network, eps, images, settings), then one row per group."""

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self.path = path
        self.asked: dict[str, Any] = json.loads(json.dumps(asked))
        text = path.read_text() if path.exists() else ""
        whole = [line for line in text.splitlines() if self._parse(line) is not None] or [json.dumps(self.asked)]
        before = self._parse(whole[0]) or {}
        if before != self.asked:
            changed = [k for k in self.asked if before.get(k) != self.asked[k]]
            raise CitrusError(
                f"{path} holds rows of another question ({', '.join(changed)} differ): choose another --out or move it."
            )
        if text != (kept := "".join(f"{line}\n" for line in whole)):  # new, or a line was cut short by a crash
            write_text(path, kept)
        found = [self._row(line) for line in whole[1:]]
        self.by_group = {row.group: row for row in found}  # the last one where a group was done again

    @property
    def rows(self) -> list[GroupResult]:
        return [row for _, row in sorted(self.by_group.items())]

    def add(self, rows: tuple[GroupResult, ...]) -> None:
        for row in rows:
            self.by_group[row.group] = row
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

    def _row(self, line: str) -> GroupResult:
        try:
            value = json.loads(line)
            return GroupResult(**{**value, "index": tuple(value["index"]), "verdict": Verdict(value["verdict"])})
        except (KeyError, TypeError, ValueError) as error:
            raise CitrusError(f"{self.path} holds a line that is no row ({error}): move it away.") from error
