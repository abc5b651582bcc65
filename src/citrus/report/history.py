"""How a network came about: training curves, configuration and environment."""

import json
import shlex
from typing import Any

from citrus.report.charts import Line, count_axis, line_chart, linear_axis, series
from citrus.report.document import ABSENT, Piece, Section, figure, fold, paragraph, table
from citrus.report.read import Record

MOST_EPOCHS = 12  # rows of the table beside the curves

# Title, axis, and for each line the key in metrics.jsonl, what it is called, and its factor to the axis.
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
    held_out, on_training, *others = (_figure(records, *curve) for curve in CURVES)
    figures = [curve for curve in (held_out or on_training, *others) if curve]
    numbers = fold("The numbers behind the curves", *(_epochs(record) for record in trained))
    return Section("training", "Training", [*figures, numbers])


def _figure(records: list[Record], title: str, axis: str, kinds: Kinds) -> Piece | None:
    """One colour per run; the first kind solid, the second dashed. Epochs are counted from 1 for people."""
    lines = []
    for k, record in enumerate(records):
        run = series(k, record.name if record.prefix else "")
        for key, name, factor in kinds:
            points = [(row["epoch"] + 1, factor * row[key]) for row in record.metrics if key in row]
            if points:
                lines.append(Line(record.prefix + name, points, run, dashed=key != kinds[0][0]))
    if not lines:
        return None
    ends = "; ".join(f"{line.label}: from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in lines)
    x = count_axis("epoch", (p[0] for line in lines for p in line.points))
    y = linear_axis(axis, [0.0, *(p[1] for line in lines for p in line.points)])
    strokes = [name for _, name, _ in kinds] if len({line.dashed for line in lines}) > 1 else []
    return figure(line_chart(f"training-{kinds[0][0]}", title, ends, (x, y), lines, strokes))


def _epochs(record: Record) -> Piece:
    """Some epochs, the last one always."""
    step = -(-len(record.metrics) // MOST_EPOCHS)
    keys = [key for _, _, kinds in CURVES for key, _, _ in kinds] + ["lr", "seconds"]
    known = [key for key in keys if any(key in row for row in record.metrics)]
    rows = []
    for row in record.metrics[(len(record.metrics) - 1) % step :: step]:
        rows.append([f"{row['epoch'] + 1:g}", *(f"{row[key]:.4g}" if key in row else ABSENT for key in known)])
    return table(f"{record.name}: some epochs", ["Epoch", *(key.replace("_", " ") for key in known)], rows)


def setup(records: list[Record]) -> Section:
    """Configuration and environment; of several runs first what differs."""
    pieces = []
    for title, columns in (
        ("Configuration", [_flat(record.config) for record in records]),
        ("Environment", [_environment(record.env) for record in records]),
    ):
        names = dict.fromkeys(name for column in columns for name in column)
        rows = [[name, *(column.get(name, ABSENT) for column in columns)] for name in names]
        differing = [row for row in rows if len(set(row[1:])) > 1]
        same = table(title, ("Name", "Value"), [row[:2] for row in rows if row not in differing], "words")
        if not rows:
            pieces.append(paragraph(f"{title}: not known.", kind="note"))
        if differing:
            header = ["Name", *(record.name for record in records)]
            pieces.append(table(f"{title}: what differs", header, differing, "words"))
        if len(differing) < len(rows):
            folded = fold(title if len(records) == 1 else f"{title}: what is the same", same)
            pieces.append(same if len(records) == 1 and title == "Environment" else folded)
    return Section("setup", "Configuration and environment", pieces)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested fields by dotted name."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict) and prefix.count(".") < 5:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            shown = "none" if value is None else json.dumps(value, ensure_ascii=False)
            found[prefix + name] = value if isinstance(value, str) else shown
    return found


def _environment(env: dict[str, Any]) -> dict[str, str]:
    """The command as one typed it, and of uncommitted changes only how many there are."""
    shown = dict(env)
    command, git = shown.get("command"), shown.pop("git", None)
    if isinstance(command, list):
        shown["command"] = shlex.join(str(word) for word in command)
    if isinstance(git, dict):
        changed = len(str(git.get("diff") or "").splitlines())
        shown["git commit"] = git.get("commit")
        shown["uncommitted changes"] = f"a diff of {changed} lines" if changed else "none"
    return _flat(shown)
