"""Rows of studies: JSON, one line per finished thing, appended when it is finished and read by the same module.

Every row has `kind` (run, certification, ...), `study`, `name`, `time` and `environment`: the id of the line of
environments.jsonl, beside the file, that says on which machine and with which versions it was made. A row with `failed`
says why a thing could not be made. An id is a hash of what it names, so that files of rows may be joined.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from citrus.errors import CitrusError
from citrus.files import append_line, read_lines
from citrus.training.environment import environment

Row = dict[str, Any]
ENVIRONMENTS = "environments.jsonl"


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, none where there is no file; a last line that a crash cut short is left out."""
    rows, broken = read_lines(path)
    cut_short = broken > 0 and not path.read_bytes().endswith(b"\n")
    if broken > cut_short:
        raise CitrusError(f"{path} holds a line that is no row: repair it, or move the file away.")
    return rows


class StudyRows:
    """The rows of one study, in a file to which it appends."""

    def __init__(self, path: Path, study: str) -> None:
        self.path, self.study = path, study
        self.rows = read_rows(path)
        self._environment = ""

    def about(self, name: str, kind: str = "") -> list[Row]:
        """What was written about an entry of this study, in order."""
        own = (row for row in self.rows if (row.get("study"), row.get("name")) == (self.study, name))
        return [row for row in own if not kind or row["kind"] == kind]

    def add(self, kind: str, name: str, values: Row) -> Row:
        """Append a row; it is on the disk when this returns."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        head = {"kind": kind, "study": self.study, "name": name, "environment": self._environment_id(), "time": now}
        row: Row = json.loads(json.dumps(head | values))
        append_line(self.path, row)
        self.rows.append(row)
        return row

    def claim(self, asked: Row) -> None:
        """A file belongs to one question, which its first row names: another one is refused."""
        asked = json.loads(json.dumps({"study": self.study, **asked}))
        kept = next((row for row in self.rows if row["kind"] == "study"), None) or self.add("study", "", asked)
        changed = [name for name, value in asked.items() if kept.get(name) != value]
        if changed:
            raise CitrusError(
                f"{self.path.parent} holds another study ({', '.join(changed)} differ): choose another --out."
            )

    def _environment_id(self) -> str:
        if not self._environment:
            found = {name: value for name, value in environment().items() if name not in ("started", "command")}
            self._environment = environment_id(found)
            path = self.path.with_name(ENVIRONMENTS)
            if all(row.get("id") != self._environment for row in read_rows(path)):
                append_line(path, {"id": self._environment, **found})
        return self._environment


def environment_id(values: Row) -> str:
    """Short for all values of an environment: the same machine, versions and commit have the same id."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def machine() -> str:
    """Where this runs, in a few words."""
    found = environment()
    threads = f"{found['threads']} thread{'s'[: found['threads'] > 1]}"
    return f"{found['gpu'] or found['cpu']}, {threads}, torch {found['torch']}"
