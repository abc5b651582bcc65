"""`citrus data list | fetch NAME | info NAME`."""

from dataclasses import dataclass
from typing import Any

from citrus.commands.target import parse_flags, take_word
from citrus.console import Bar, table
from citrus.data import describe, fetch, known
from citrus.errors import CitrusError, suggest

ACTIONS = ("list", "fetch", "info")


@dataclass
class DataFlags:
    """citrus data list | fetch NAME | info NAME"""

    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""


def run(arguments: list[str]) -> None:
    action, rest = take_word(arguments)
    name, rest = take_word(rest)
    flags, _ = parse_flags(DataFlags, "data", rest)
    if action not in ACTIONS:
        raise CitrusError(f"What about data? {suggest(action or '', ACTIONS)}")
    if action == "list":
        rows = [
            [info.name, "x".join(map(str, info.shape)), str(info.classes), str(place or "not found")]
            for info, place in known(flags.data_dir)
        ]
        print(table(["name", "shape", "classes", "found in"], rows))
        return
    if not name:
        names = [info.name for info, _ in known()]
        raise CitrusError(f"`citrus data {action}` needs the name of a data set: {suggest('', names)}")
    if action == "fetch":
        print(_fetch(name, flags.data_dir))
    else:
        for key, value in describe(name, flags.data_dir).items():
            print(f"{key:12}{_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        shown = " ".join(str(v) for v in value[:12])
        return shown + (f" ... ({len(value)})" if len(value) > 12 else "")
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_text(v)}" for k, v in value.items())
    return str(value)


def _fetch(name: str, data_dir: str | None) -> str:
    bars: dict[str, Bar] = {}

    def progress(file: str, done: int, total: int) -> None:
        bars.setdefault(file, Bar(file)).update(done, total)

    try:
        return f"{name} is in {fetch(name, data_dir, progress)}"
    finally:
        for bar in bars.values():
            bar.close()
