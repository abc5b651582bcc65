"""Charts as SVG. Places are percentages of the plot: a chart fills any width, and its letters keep their size."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from citrus.report.document import SHAPES, Figure, Key

SERIES = ("s0", "s1", "s2", "s3", "s4", "s5")
"""Names of colours that colour-blind eyes tell apart; the page's style sheet holds their values."""
MOST_MARKERS = 12  # of a line; a longer one has some, so that its shape tells it apart as well as its colour
Point = tuple[float, float]
Part = tuple[str, str, int]  # of a bar: name, colour, count


@dataclass(frozen=True)
class Line:
    label: str
    points: tuple[Point, ...]
    series: int
    """Its colour, and the shape of its markers."""
    dashed: bool = False

    @property
    def colour(self) -> str:
        return SERIES[self.series % len(SERIES)]


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, in percent of the axis."""
        scale = math.log if self.logarithmic else float
        low, high = scale(self.low), scale(self.high)
        return 100 * (scale(value) - low) / (high - low)


def series_key(text: str, series: int) -> Key:
    """The legend's entry of a series."""
    return Key(text, SERIES[series % len(SERIES)], "marker", series)


def linear_axis(label: str, values: Iterable[float], span: float = 1e-9) -> Axis:
    """An axis from one round tick to another that holds all values, at least `span` long."""
    known = list(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if high - low < span:
        middle, half = (low + high) / 2, max(span, 1.0 if high == low else 0.0) / 2
        low, high = middle - half, middle + half
    step = _round_step((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((k * step, f"{round(k * step, 10):g}") for k in range(first, last + 1))
    return Axis(label, first * step, last * step, ticks)


def count_axis(label: str, values: Iterable[float]) -> Axis:
    """An axis that ends where the values end, with ticks at whole numbers."""
    known = list(values)
    low, high = min(known), max(known)
    if low == high:
        low, high = low - 1, high + 1
    step = _round_step(max((high - low) / 5, 1))
    ticks = range(math.ceil(low / step), math.floor(high / step) + 1)
    return Axis(label, low, high, tuple((k * step, f"{k * step:g}") for k in ticks))


def value_axis(label: str, values: Sequence[tuple[float, str]], logarithmic: bool = False) -> Axis:
    """An axis whose ticks are the measured values, as far as their texts do not run into each other."""
    known = sorted(set(values))
    low, high = known[0][0], known[-1][0]
    if low == high:
        low, high = (low / 2, high * 2) if logarithmic else (low - 0.5, high + 0.5)
    axis = Axis(label, low, high, (), logarithmic)
    ticks: list[tuple[float, str]] = []
    for value, text in known:
        if not ticks or axis.share(value) - axis.share(ticks[-1][0]) >= 9:
            ticks.append((value, text))
    return Axis(label, low, high, tuple(ticks), logarithmic)


def _round_step(step: float) -> float:
    """1, 2 or 5 times a power of ten, at least `step`."""
    power = 10 ** math.floor(math.log10(step))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= step * (1 - 1e-9))


def line_chart(
    anchor: str,
    title: str,
    description: str,
    axes: tuple[Axis, Axis],
    lines: Sequence[Line],
    keys: tuple[Key, ...],
    bands: Sequence[tuple[Line, Line]] = (),
) -> Figure:
    """Lines with markers where they are few; `bands` fill what lies between two lines."""
    x, y = axes
    drawn = ""
    for there, back in bands:
        points = _places([*there.points, *reversed(back.points)], x, y)
        drawn += f'<polygon class="band k-{there.colour}" points="{points}"/>'
    for line in lines:
        kind = "line dashed" if line.dashed else "line"
        drawn += f'<polyline class="{kind} k-{line.colour}" points="{_places(line.points, x, y)}"/>'
    svg = (
        f'<svg class="plot" role="img" aria-labelledby="{anchor}-title {anchor}-text">'
        f'<title id="{anchor}-title">{escape(title)}</title><desc id="{anchor}-text">{escape(description)}</desc>'
        f'{_frame(x, y)}<svg width="100%" height="100%" viewBox="0 0 100 100" preserveAspectRatio="none">{drawn}</svg>'
        f"{''.join(_markers(line, x, y) for line in lines)}</svg>"
    )
    return Figure(title, description, svg, keys)


def _frame(x: Axis, y: Axis) -> str:
    parts = []
    for value, text in y.ticks:
        place = f"{100 - y.share(value):.2f}%"
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{place}" y2="{place}"/>')
        parts.append(f'<text class="tick" x="0" dx="-8" y="{place}" dy=".32em" text-anchor="end">{escape(text)}</text>')
    for value, text in x.ticks:
        place = f"{x.share(value):.2f}%"
        parts.append(f'<text class="tick" x="{place}" y="100%" dy="18" text-anchor="middle">{escape(text)}</text>')
    parts.append('<line class="base" x1="0" x2="100%" y1="100%" y2="100%"/>')
    parts.append(f'<text class="axis" x="50%" y="100%" dy="38" text-anchor="middle">{escape(x.label)}</text>')
    parts.append(f'<text class="axis" x="0" dx="-40" y="0" dy="-14">{escape(y.label)}</text>')
    return "".join(parts)


def _places(points: Sequence[Point], x: Axis, y: Axis) -> str:
    return " ".join(f"{x.share(a):.2f},{100 - y.share(b):.2f}" for a, b in points)


def _markers(line: Line, x: Axis, y: Axis) -> str:
    step = -(-len(line.points) // MOST_MARKERS)
    shape, kind = SHAPES[line.series % len(SHAPES)], "mark hollow" if line.dashed else "mark"
    return "".join(
        f'<svg class="{kind} k-{line.colour}" x="{x.share(a):.2f}%" y="{100 - y.share(b):.2f}%"><path d="{shape}">'
        f"<title>{escape(f'{line.label}: {b:.4g} at {x.label} {a:.4g}')}</title></path></svg>"
        for a, b in line.points[::step]
    )


def bar_chart(title: str, bars: Sequence[tuple[str, Sequence[Part]]], keys: tuple[Key, ...] = ()) -> Figure:
    """Bars below each other, all of the same length: a label and parts each."""
    told, svg = [], ""
    for label, parts in bars:
        told.append(f"{label}: " + ", ".join(f"{name} {count}" for name, _, count in parts))
        whole, done, drawn = sum(count for _, _, count in parts) or 1, 0, ""
        for _, kind, count in parts:
            if count:
                drawn += f'<rect class="k-{kind}" x="{100 * done / whole:.3f}%" width="{100 * count / whole:.3f}%"/>'
            done += count
        svg += (
            f'<p class="label">{escape(label)}</p><svg class="stack" role="img" aria-label="{escape(told[-1])}">'
            f"<title>{escape(told[-1])}</title>{drawn}</svg>"
        )
    svg += '<p class="scale" aria-hidden="true"><span>0 %</span><span>50 %</span><span>100 %</span></p>'
    return Figure(title, "; ".join(told), svg, keys)
