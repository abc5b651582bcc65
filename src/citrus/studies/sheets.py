"""A table with our numbers, maybe with a figure and published numbers beside them, as text and as a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from citrus.report.charts import Line, count_axis, line_chart, linear_axis, series, value_axis
from citrus.report.document import ABSENT, Figure

LINES = {"clean": "clean accuracy", "uap": "UAP attack", "certified": "certified UAP accuracy"}
MOST_POINTS = 40  # of a line over the steps of an epoch


@dataclass(frozen=True)
class Sheet:
    """What one table or figure says."""

    table: str
    """Its name on the command line."""
    title: str
    columns: Mapping[str, str]
    """What heads the values of each key."""
    rows: Sequence[Mapping[str, Any]]
    """A value of None is not known."""
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be made, and why."""
    figure: Figure | None = None

    @property
    def header(self) -> list[str]:
        return list(self.columns.values())

    @property
    def cells(self) -> list[list[str]]:
        return [[_cell(row.get(key)) for key in self.columns] for row in self.rows]

    def markdown(self) -> str:
        """Title, table, notes, figure, and what is missing."""
        rule = ["---" if any(isinstance(row.get(key), str) for row in self.rows) else "---:" for key in self.columns]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.cells))
        figure = [f"![{self.figure.description}]({self.table}.svg)"] if self.figure else []
        missing = [f"- missing: {text}." for text in self.missing]
        return "\n\n".join([f"## {self.title}", table, *self.notes, *figure, "\n".join(missing)]).strip() + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ABSENT
    return f"{value:.2f}" if isinstance(value, float) else " ".join(str(value).replace("|", "/").split())


def sweep_figure(name: str, label: str, x: Sequence[float], rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Our accuracies against what was varied, where there are at least two; counts lie on a logarithmic axis."""
    there = [(value, row) for value, row in zip(x, rows, strict=True) if "clean" in row]
    if len(there) < 2:
        return None
    lines = [
        Line(title, [(value, row[key]) for value, row in there], series(k, title), dashed=key == "uap")
        for k, (key, title) in enumerate(LINES.items())
    ]
    across = value_axis(label, [(value, f"{value:g}") for value, _ in there], isinstance(x[0], int))
    up = linear_axis("percent", [point[1] for line in lines for point in line.points], span=5)
    told = "; ".join(f"{value:g}: clean {row['clean']:.2f}, certified {row['certified']:.2f}" for value, row in there)
    return line_chart(name, f"Accuracy against {label}", f"Percent by {label}: {told}.", (across, up), lines)


def loss_figure(name: str, losses: Mapping[str, Sequence[float]]) -> Figure:
    """The losses over the steps of an epoch, by what the legend calls them."""
    lines = [Line(label, _thinned(values), series(k, label)) for k, (label, values) in enumerate(losses.items())]
    points = [point for line in lines for point in line.points]
    across = count_axis("step of the last epoch", [x for x, _ in points])
    up = linear_axis("loss", [0.0, *(y for _, y in points)])
    means = ", ".join(f"{label} {sum(values) / len(values):.4f}" for label, values in losses.items())
    title, told = "Loss of boxes over the last epoch", f"Means over the epoch: {means}."
    return line_chart(name, title, told, (across, up), lines)


def _thinned(values: Sequence[float]) -> list[tuple[float, float]]:
    """Means of neighbours, at their middle."""
    size = -(-len(values) // MOST_POINTS)
    parts = [(start, values[start : start + size]) for start in range(0, len(values), size)]
    return [(start + (len(part) + 1) / 2, sum(part) / len(part)) for start, part in parts]
