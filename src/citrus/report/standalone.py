"""A figure of the report as an SVG file of its own: style, title and legend inside, light and dark."""

from citrus.report.document import Figure, plain, templates

WIDTH, HEIGHT = 720, 420
LEFT, TOP, RIGHT, BOTTOM = 64, 104, 24, 56  # room around the plot
LINE = 22  # height of a line of the legend
LETTER = 7.2  # widths of a letter of the legend, for the place of the next entry


def svg_file(shown: Figure) -> str:
    """The text of the file; it needs nothing but itself."""
    legend, left, line = [], float(LEFT - 34), 0
    x = left
    for key in shown.keys:
        width = 12 + LETTER * len(key.text)
        if x > left and x + width > WIDTH - RIGHT:
            x, line = left, line + 1
        legend.append((key, x, 57 + line * LINE))
        x += width + 24
    size = {"width": WIDTH, "height": HEIGHT + line * LINE, "top": TOP + line * LINE}
    room = {"left": LEFT, "right": RIGHT, "bottom": BOTTOM}
    return plain(templates().get_template("figure.svg").render(shown=shown, legend=legend, **size, **room))
