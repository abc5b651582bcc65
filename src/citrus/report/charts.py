"""Charts as SVG, drawn by the macros of pieces.html, for a page or as files of their own."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from citrus.report.document import Figure, Key, draw, plain, templates

COLOURS = 6  # that colour-blind eyes tell apart; the style sheet holds them
MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.6-3.6h7.2v7.2h-7.2z", "M0-4.8 4.6 3.6h-9.2z", "M0-5 5 0 0 5-5 0z")
MOST_MARKERS = 12  # of a line; a longer one has some, so that its shape tells it apart as well as its colour
WIDTH, HEIGHT = 720, 420  # of a file
LEFT, TOP, RIGHT, BOTTOM = 64, 104, 24, 56  # room around its plot
TICK_ROOM = 9  # percent of an axis between its ticks
LEGEND_LINE, LETTER = 22, 7.2  # height of a line of its legend, and width of a letter there
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[Point]
    key: Key
    """Its colour, the shape of its markers, and its entry in the legend, if that has a text."""
    dashed: bool = False

    @property
    def marked(self) -> Sequence[Point]:
        return self.points[:: -(-len(self.points) // MOST_MARKERS)]


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, in percent of the axis."""
        scale = math.log if self.logarithmic else float
        low, high = scale(self.low), scale(self.high)
        return 100 * (scale(value) - low) / ((high - low) or 1.0)  # numbers may be too large to differ by 1


def series(number: int, text: str = "") -> Key:
    """The n-th colour and marker, and what they stand for."""
    return Key(text, f"s{number % COLOURS}", "marker", MARKERS[number % len(MARKERS)])


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
    """An axis with ticks at the measured values, as far as their texts do not run into each other; the last has one."""
    known = sorted(set(values))
    low, high = known[0][0], known[-1][0]
    if low == high:
        low, high = (low / 2, high * 2) if logarithmic else (low - 0.5, high + 0.5)
    axis = Axis(label, low, high, (), logarithmic)
    ticks: list[tuple[float, str]] = []
    for value, text in known:
        if not ticks or axis.share(value) - axis.share(ticks[-1][0]) >= TICK_ROOM:
            ticks.append((value, text))
    if ticks[-1][0] != known[-1][0]:
        ticks[-1] = known[-1]
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
    strokes: Sequence[str] = (),
    bands: Sequence[tuple[Line, Line]] = (),
    caption: str = "",
) -> Figure:
    """Lines with markers; `strokes` say what solid and dashed lines are, `bands` fill what lies between two lines."""
    x, y = axes
    svg = draw("line_chart", anchor=anchor, title=title, description=description, x=x, y=y, lines=lines, bands=bands)
    named = dict.fromkeys(line.key for line in lines if line.key.text)
    stroked = (Key(text, "ink", "dashed" if place else "solid") for place, text in enumerate(strokes))
    return Figure(title, description, svg, (*named, *stroked), caption)


def bar_chart(title: str, bars: Sequence[tuple[str, Mapping[str, int]]], names: Mapping[str, str]) -> Figure:
    """Bars below each other, all of the same length: a label each, and counts by colour; `names` is the legend."""
    drawn = []
    for label, counts in bars:
        parts = [counts.get(colour, 0) for colour in names]
        told = f"{label}: " + ", ".join(f"{name} {part}" for name, part in zip(names.values(), parts, strict=True))
        shares = [100 * part / (sum(parts) or 1) for part in parts]
        drawn.append((label, told, list(zip(names, accumulate(shares, initial=0.0), shares, strict=False))))
    keys = tuple(Key(name, colour) for colour, name in names.items())
    return Figure(title, "; ".join(told for _, told, _ in drawn), draw("bar_chart", bars=drawn), keys)


def svg_file(shown: Figure) -> str:
    """A figure as the text of a file that needs nothing but itself: style, title and legend inside, light and dark."""
    legend, left, line = [], float(LEFT - 34), 0
    x = left
    for key in shown.keys:
        width = 12 + LETTER * len(key.text)
        if x > left and x + width > WIDTH - RIGHT:
            x, line = left, line + 1
        legend.append((key, x, 57 + line * LEGEND_LINE))
        x += width + 24
    size = {"width": WIDTH, "height": HEIGHT + line * LEGEND_LINE, "top": TOP + line * LEGEND_LINE}
    room = {"left": LEFT, "right": RIGHT, "bottom": BOTTOM}
    return plain(templates().get_template("figure.svg").render(shown=shown, legend=legend, **size, **room))
