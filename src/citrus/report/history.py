"""How a network came about: training curves, configuration and environment."""

import json
import shlex
from typing import Any

from citrus.report.charts import Line, colour, count_axis, line_chart, linear_axis, series_key
from citrus.report.document import ABSENT, Block, Cell, Figure, Figures, Fold, Key, Paragraph, Section, Table
from citrus.report.files import number
from citrus.report.read import Record

MOST_EPOCHS = 12  # rows of the table beside the curves
LONGEST = 2000  # letters of a value

# title, axis, and for each line the key in metrics.jsonl, what it is called, and its share of a percent
Kinds = tuple[tuple[str, str, float], ...]
HELD_OUT: Kinds = (("validation_clean", "clean", 1), ("validation_ibp", "certified (IBP)", 1))
CURVES: tuple[tuple[str, str, Kinds], ...] = (
    ("Accuracy on held-out images", "percent", HELD_OUT),
    ("Accuracy on training images", "percent", (("accuracy", "clean", 100),)),
    ("Loss", "loss", (("loss", "total", 1), ("clean_loss", "clean", 1))),
    ("Radius eps of the training step", "eps", (("eps", "eps", 1),)),
)


def training(records: list[Record]) -> Section | None:
    trained = [record for record in records if record.metrics]
    if not trained:
        return None
    held_out = any(number(row, "validation_clean") is not None for record in trained for row in record.metrics)
    chosen = [curve for i, curve in enumerate(CURVES) if i != (1 if held_out else 0)]
    figures = [f for curve in chosen if (f := _figure(records, *curve)) is not None]
    tables = [_epochs(record, len(records) > 1) for record in trained]
    blocks: list[Block] = [Figures(tuple(figures))] if figures else []
    return Section("training", "Training", (*blocks, Fold("The numbers behind the curves", tuple(tables))))


def _epoch(row: dict[str, Any], place: int) -> float:
    """Epochs are counted from 0 in the file and from 1 for people."""
    epoch = number(row, "epoch")
    return (place if epoch is None else epoch) + 1


def _figure(records: list[Record], title: str, axis: str, kinds: Kinds) -> Figure | None:
    """One colour per run; the first kind solid, the second dashed."""
    lines = []
    for k, record in enumerate(records):
        for kind, (key, name, factor) in enumerate(kinds):
            points = [(_epoch(row, i), number(row, key)) for i, row in enumerate(record.metrics)]
            known = tuple((x, factor * y) for x, y in points if y is not None)
            label = f"{record.name}, {name}" if len(records) > 1 else name
            if known:
                series = k if len(records) > 1 else kind
                lines.append(Line(label, known, series, dashed=kind > 0))
    if not lines:
        return None
    ends = "; ".join(f"{line.label}: from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in lines)
    x = count_axis("epoch", (p[0] for line in lines for p in line.points))
    y = linear_axis(axis, [0.0, *(p[1] for line in lines for p in line.points)])
    trained = [(k, record) for k, record in enumerate(records) if record.metrics]
    several = tuple(series_key(record.name, k) for k, record in trained) if len(records) > 1 else ()
    styles = tuple(
        Key(name, "ink" if several else colour(kind), "dashed" if kind else "solid")
        for kind, (key, name, _) in enumerate(kinds)
        if any(number(row, key) is not None for record in records for row in record.metrics)
    )
    keys = (*several, *styles) if len(styles) > 1 else several
    return line_chart(f"training-{kinds[0][0]}", title, ends, (x, y), lines, keys)


def _epochs(record: Record, named: bool) -> Table:
    """Some epochs, the last one always."""
    rows = list(enumerate(record.metrics))
    step = -(-len(rows) // MOST_EPOCHS)
    shown = rows[(len(rows) - 1) % step :: step]
    keys = [key for _, _, kinds in CURVES for key, _, _ in kinds] + ["lr", "seconds"]
    known = [key for key in keys if any(number(row, key) is not None for _, row in rows)]
    cells = tuple((Cell(f"{_epoch(row, i):g}"), *(_value(number(row, key)) for key in known)) for i, row in shown)
    caption = f"{record.name}: some epochs" if named else "Some epochs"
    return Table(caption, ("Epoch", *(key.replace("_", " ") for key in known)), cells)


def _value(value: float | None) -> Cell:
    return Cell(ABSENT if value is None else f"{value:.4g}")


def setup(records: list[Record]) -> Section:
    """Configuration and environment; of several runs first what differs."""
    blocks: list[Block] = []
    parts = (
        ("Configuration", [_flat(r.config) for r in records]),
        ("Environment", [_environment(r.env) for r in records]),
    )
    for title, columns in parts:
        names = list(dict.fromkeys(name for column in columns for name in column))
        differing = [name for name in names if len({column.get(name) for column in columns}) > 1]
        same = [name for name in names if name not in differing]
        if not names:
            blocks.append(Paragraph((f"{title}: not known.",), "note"))
        if differing:
            blocks.append(_settings(f"{title}: what differs", records, columns, differing))
        if same and len(records) > 1:
            blocks.append(Fold(f"{title}: what is the same", (_settings(title, records[:1], columns, same),)))
        elif same:
            table = _settings(title, records, columns, same)
            blocks.append(table if title == "Environment" else Fold(title, (table,)))
    return Section("setup", "Configuration and environment", tuple(blocks))


def _settings(caption: str, records: list[Record], columns: list[dict[str, str]], names: list[str]) -> Table:
    header = ("Name", *(r.name for r in records)) if len(records) > 1 else ("Name", "Value")
    rows = tuple((Cell(n), *(Cell(c.get(n, ABSENT)) for c in columns[: len(records)])) for n in names)
    return Table(caption, header, rows, "words")


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested fields by dotted name."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict) and prefix.count(".") < 5:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = _text(value)
    return found


def _environment(env: dict[str, Any]) -> dict[str, str]:
    shown = {name: value for name, value in env.items() if name not in ("git", "command")}
    found = _flat(shown)
    command, git = env.get("command"), env.get("git")
    if isinstance(command, list):
        found["command"] = _text(shlex.join(str(word) for word in command))
    if isinstance(git, dict):
        found["git commit"] = _text(git.get("commit"))
        changed = len(str(git.get("diff") or "").splitlines())
        found["uncommitted changes"] = f"a diff of {changed} lines" if changed else "none"
    return found


def _text(value: Any) -> str:
    try:
        shown = value if isinstance(value, str) else "none" if value is None else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        shown = "..."
    return shown if len(shown) <= LONGEST else shown[:LONGEST] + " ..."
